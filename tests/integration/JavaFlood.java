import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * A client that wants more than it may have. It prints how many records were acknowledged, or read, in each second from
 * the first one on, and how many failed. Arguments: produce or consume, BOOTSTRAP CLIENT_ID TOPIC PARTITIONS SECONDS.
 */
public final class JavaFlood {
    private static final String PACKAGE = "org.apache.kafka.common.serialization.ByteArray";
    private static final AtomicLong ERRORS = new AtomicLong();
    private static int[] records;
    private static long begin;

    public static void main(String[] arguments) {
        String topic = arguments[3];
        int partitions = Integer.parseInt(arguments[4]);
        records = new int[Integer.parseInt(arguments[5])];
        if (arguments[0].equals("produce")) {
            produce(arguments[1], arguments[2], topic);
        } else {
            consume(arguments[1], arguments[2], topic, partitions);
        }
        System.out.println(Arrays.toString(records));
        System.out.println(ERRORS.get());
    }

    private static synchronized void count(int more) {
        if (begin == 0 && more > 0) {
            begin = System.nanoTime();
        }
        long second = second();
        if (second < records.length) {
            records[(int) second] += more;
        }
    }

    private static synchronized long second() {
        return begin == 0 ? 0 : (System.nanoTime() - begin) / 1_000_000_000;
    }

    private static void produce(String bootstrap, String clientId, String topic) {
        byte[] value = new byte[10_000];
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(Map.of(
            "bootstrap.servers", bootstrap, "client.id", clientId, "buffer.memory", 4_000_000, "batch.size", 100_000,
            "key.serializer", PACKAGE + "Serializer", "value.serializer", PACKAGE + "Serializer"));
        try (producer) {
            while (second() < records.length) {
                producer.send(new ProducerRecord<>(topic, value), (metadata, error) -> {
                    if (error == null) {
                        count(1);
                    } else {
                        ERRORS.incrementAndGet();
                    }
                });
            }
        }
    }

    /** Reads from the beginning again and again. */
    private static void consume(String bootstrap, String clientId, String topic, int partitions) {
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(Map.of(
            "bootstrap.servers", bootstrap, "client.id", clientId,
            "key.deserializer", PACKAGE + "Deserializer", "value.deserializer", PACKAGE + "Deserializer"));
        try (consumer) {
            List<TopicPartition> assigned =
                IntStream.range(0, partitions).mapToObj(each -> new TopicPartition(topic, each)).toList();
            consumer.assign(assigned);
            Map<TopicPartition, Long> ends = consumer.endOffsets(assigned);
            consumer.seekToBeginning(assigned);
            while (second() < records.length) {
                count(consumer.poll(Duration.ofMillis(100)).count());
                for (TopicPartition each : assigned) {
                    if (consumer.position(each) >= ends.get(each)) {
                        consumer.seekToBeginning(List.of(each));
                    }
                }
            }
        }
    }
}
