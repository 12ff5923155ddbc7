import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.requests.RequestHeader;

/** Reads request headers, one a line in hex, and prints each client id as UTF-16 in hex, or the error's class. */
public class ReadHeaders {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                String clientId = RequestHeader.parse(ByteBuffer.wrap(HexFormat.of().parseHex(line))).clientId();
                System.out.println(HexFormat.of().formatHex(clientId.getBytes("UTF-16BE")));
            } catch (Exception error) {
                System.out.println(error.getClass().getSimpleName());
            }
        }
    }
}
