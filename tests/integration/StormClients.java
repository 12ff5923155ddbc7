import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Starts producers at once, as executors do: each sends one record with the client's defaults. */
public final class StormClients {
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[2]);
        ExecutorService threads = Executors.newFixedThreadPool(count);
        List<Future<?>> sent = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            sent.add(threads.submit(() -> send(arguments[0], arguments[1])));
        }
        for (Future<?> each : sent) {
            each.get();
        }
        threads.shutdown();
        System.out.println("sent " + count);
    }

    private static Void send(String servers, String topic) throws Exception {
        Properties settings = new Properties();
        String serializer = "org.apache.kafka.common.serialization.StringSerializer";
        settings.putAll(Map.of(
            "bootstrap.servers", servers, "key.serializer", serializer, "value.serializer", serializer, "retries", "0"));
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.send(new ProducerRecord<>(topic, "from Java")).get();
        }
        return null;
    }
}
