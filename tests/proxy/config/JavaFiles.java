import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.SaslConfigs;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;

/**
 * What Java finds in each text of stdin: lines `jaas BASE64` or `properties BASE64`, of UTF-16BE. Answers each with a line:
 * its keys and values in base64, by turns, or `refused`.
 */
class JavaFiles {
    public static void main(String[] none) throws IOException {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        var answers = new StringBuilder();
        for (String line; (line = lines.readLine()) != null; ) {
            var parts = line.split(" ", -1);
            var text = new String(Base64.getDecoder().decode(parts[1]), StandardCharsets.UTF_16BE);
            try {
                answers.append(shown(parts[0].equals("jaas") ? jaas(text) : properties(text)));
            } catch (IllegalArgumentException | KafkaException error) {
                answers.append("refused");
            }
            answers.append('\n');
        }
        System.out.print(answers);
    }

    private static Map<?, ?> jaas(String text) {
        var context = JaasContext.loadClientContext(Map.of(SaslConfigs.SASL_JAAS_CONFIG, new Password(text)));
        return context.configurationEntries().get(0).getOptions();
    }

    private static Map<?, ?> properties(String text) throws IOException {
        var properties = new Properties();
        properties.load(new StringReader(text));
        return properties;
    }

    private static String shown(Map<?, ?> found) {
        List<String> parts = new ArrayList<>();
        found.forEach((key, value) -> {
            if (key != null) {  // an option whose name is a number
                parts.add(encoded(key));
                parts.add(encoded(value));
            }
        });
        return String.join(" ", parts);
    }

    private static String encoded(Object text) {
        return Base64.getEncoder().encodeToString(((String) text).getBytes(StandardCharsets.UTF_16BE));
    }
}
