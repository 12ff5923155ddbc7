import java.time.Duration;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;

/** Transactions with Kafka's Java client. transactional_producers.py describes its arguments and its output. */
public final class TransactionalProducer {
    private final String[] arguments;
    private final int partitions;
    private final int size;
    private final Set<String> errors = Collections.synchronizedSet(new LinkedHashSet<>());
    private final Set<Integer> committed = new LinkedHashSet<>();
    private KafkaProducer<byte[], byte[]> producer;

    private TransactionalProducer(String[] arguments) {
        this.arguments = arguments;
        partitions = Integer.parseInt(arguments[3]);
        size = Integer.parseInt(arguments[5]);
        open();
    }

    public static void main(String[] arguments) {
        TransactionalProducer transactional = new TransactionalProducer(arguments);
        int number = 0;
        for (String records : arguments[4].split(",")) {
            transactional.write(number, Integer.parseInt(records));
            number += Integer.parseInt(records);
        }
        transactional.producer.close();
        String errors = transactional.errors.stream().map(each -> '"' + each + '"').collect(Collectors.joining(", "));
        System.out.println("{\"errors\": [" + errors + "], \"committed\": " + transactional.committed + "}");
    }

    private void open() {
        String serializer = "org.apache.kafka.common.serialization.ByteArraySerializer";
        producer = new KafkaProducer<>(Map.of(
            "bootstrap.servers", arguments[0], "client.id", arguments[1], "transactional.id", arguments[1],
            "transaction.timeout.ms", arguments[6], "key.serializer", serializer, "value.serializer", serializer));
        producer.initTransactions();
    }

    private void write(int first, int records) {
        try {
            producer.beginTransaction();
            for (int number = first; number < first + records; number++) {
                byte[] value = new byte[size];
                byte[] digits = String.format("%08d", number).getBytes();
                System.arraycopy(digits, 0, value, 0, digits.length);
                producer.send(new ProducerRecord<>(arguments[2], number % partitions, null, value), (metadata, error) -> {
                    if (error != null) {
                        errors.add("send: " + error.getClass().getSimpleName());
                    }
                });
            }
            producer.commitTransaction();
            committed.add(first);
        } catch (KafkaException error) {
            errors.add("commit: " + error.getClass().getSimpleName());
            abort();
        }
    }

    private void abort() {
        try {
            producer.abortTransaction();
        } catch (KafkaException error) {
            errors.add("abort: " + error.getClass().getSimpleName());
            producer.close(Duration.ZERO);
            open();
        }
    }
}
