import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** A producer with Kafka's Java client. numbered_producers.py describes its arguments and its output. */
public final class NumberedProducer {
    private final KafkaProducer<byte[], byte[]> producer;
    private final int partitions;
    private final String quiet;
    private final int quietBytes;
    private final int intervalMs;
    private int quietSent;
    private int noisySent;

    private NumberedProducer(String[] arguments) {
        String serializer = "org.apache.kafka.common.serialization.ByteArraySerializer";
        producer = new KafkaProducer<>(Map.of(
            "bootstrap.servers", arguments[0], "client.id", arguments[1], "batch.size", "100000", "linger.ms", "0",
            "key.serializer", serializer, "value.serializer", serializer));
        quiet = arguments[3];
        quietBytes = Integer.parseInt(arguments[8]);
        partitions = Integer.parseInt(arguments[9]);
        intervalMs = Integer.parseInt(arguments[11]);
    }

    public static void main(String[] arguments) throws Exception {
        NumberedProducer numbered = new NumberedProducer(arguments);
        String noisy = arguments[2];
        int noisyRecords = Integer.parseInt(arguments[5]);
        int quietRecords = Integer.parseInt(arguments[6]);
        int noisyBytes = Integer.parseInt(arguments[7]);
        int backlog = Integer.parseInt(arguments[10]);
        List<String> rounds = new ArrayList<>();
        for (int round = 0; round < Integer.parseInt(arguments[4]); round++) {
            List<Double> before = new ArrayList<>();
            List<Double> during = new ArrayList<>();
            while (before.size() < quietRecords) {
                before.add(numbered.writeQuiet(numbered.quietBytes));
            }
            CountDownLatch acknowledged = new CountDownLatch(noisyRecords);
            long began = System.nanoTime();
            Thread noise = new Thread(() -> numbered.writeNoise(noisy, noisyRecords, noisyBytes, backlog, acknowledged));
            noise.start();
            while (acknowledged.getCount() > 0) {
                during.add(numbered.writeQuiet(2 * numbered.quietBytes));
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            noise.join();
            rounds.add("{\"seconds\": " + seconds + ", \"before\": " + before + ", \"during\": " + during + "}");
        }
        numbered.producer.close();
        System.out.println(rounds);
    }

    private ProducerRecord<byte[], byte[]> record(String topic, int number, int size) {
        byte[] value = new byte[size];
        byte[] digits = String.format("%08d", number).getBytes();
        System.arraycopy(digits, 0, value, 0, digits.length);
        return new ProducerRecord<>(topic, number % partitions, null, value);
    }

    private double writeQuiet(int size) throws Exception {
        long began = System.nanoTime();
        producer.send(record(quiet, quietSent++, size)).get();
        long took = System.nanoTime() - began;
        Thread.sleep(intervalMs);
        return took / 1e9;
    }

    private void writeNoise(String topic, int records, int size, int backlog, CountDownLatch acknowledged) {
        Semaphore room = new Semaphore(backlog);
        for (int count = 0; count < records; count++) {
            room.acquireUninterruptibly();
            producer.send(record(topic, noisySent++, size), (metadata, error) -> {
                if (error != null) {
                    error.printStackTrace();
                    System.exit(1);
                }
                room.release();
                acknowledged.countDown();
            });
        }
    }
}
