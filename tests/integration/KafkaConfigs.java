import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;

/**
 * Runs kafka-configs for each line of standard input, in one JVM. Arguments are separated by tabs. A line with "$ " and
 * the exit code follows what it prints. Arguments: the class of the tool, and the one of Kafka's by which it exits.
 */
public final class KafkaConfigs {
    private KafkaConfigs() {}

    public static void main(String[] arguments) throws Exception {
        Method tool = Class.forName(arguments[0]).getMethod("main", String[].class);
        System.setErr(new PrintStream(System.out, true));
        throwInsteadOfExit(Class.forName(arguments[1]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            int code = 0;
            try {
                tool.invoke(null, (Object) line.split("\t"));
            } catch (InvocationTargetException error) {
                if (!(error.getCause() instanceof Ended)) {
                    throw error;
                }
                code = ((Ended) error.getCause()).code;
            }
            System.out.println("$ " + code);
        }
    }

    private static void throwInsteadOfExit(Class<?> exit) throws Exception {
        Class<?> type = Class.forName(exit.getName() + "$Procedure");
        Object procedure =
                Proxy.newProxyInstance(
                        type.getClassLoader(),
                        new Class<?>[] {type},
                        (self, method, arguments) -> {
                            throw new Ended((int) arguments[0]);
                        });
        exit.getMethod("setExitProcedure", type).invoke(null, procedure);
    }

    /** The tool would have ended the JVM. */
    private static final class Ended extends Error {
        private static final long serialVersionUID = 1;
        private final int code;

        private Ended(int code) {
            this.code = code;
        }
    }
}
