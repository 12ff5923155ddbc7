import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/**
 * What applications do with Kafka's Java clients, each once. It prints a line for each check: its name, and "ok" or what
 * was wrong. Arguments: BOOTSTRAP PREFIX, the beginning of all names.
 */
public final class ClientChecks {
    private static final int RECORDS = 200;
    private static final long SECONDS = 60;
    private static final String PACKAGE = "org.apache.kafka.common.serialization.String";

    private final String bootstrap;
    private final String prefix;
    private final Admin admin;

    private ClientChecks(String bootstrap, String prefix) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
        admin = Admin.create(config(Map.of()));
    }

    private interface Check {
        void run() throws Exception;
    }

    public static void main(String[] arguments) {
        ClientChecks all = new ClientChecks(arguments[0], arguments[1]);
        all.check("topics", all::topics);
        all.check("idempotent", all::idempotent);
        all.check("transactional", all::transactional);
        all.check("classic group", () -> all.group("classic"));
        all.check("consumer group", () -> all.group("consumer"));
        all.check("two members", all::twoMembers);
        all.check("copy in transactions", all::copy);
        all.check("share group, implicit", () -> all.share("implicit"));
        all.check("share group, explicit", () -> all.share("explicit"));
        all.check("configs", all::configs);
        all.check("offsets", all::offsets);
        all.check("groups", all::groups);
        all.check("cluster", all::cluster);
        all.admin.close();
    }

    private void check(String name, Check check) {
        String result = "ok";
        try {
            check.run();
        } catch (Exception | AssertionError error) {
            result = error.toString();
        }
        System.out.println(name + ": " + result);
    }

    private static void expect(boolean holds, Object seen) {
        if (!holds) {
            throw new AssertionError(String.valueOf(seen));
        }
    }

    private Map<String, Object> config(Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap, "client.id", prefix,
            "key.serializer", PACKAGE + "Serializer", "value.serializer", PACKAGE + "Serializer",
            "key.deserializer", PACKAGE + "Deserializer", "value.deserializer", PACKAGE + "Deserializer"));
        config.putAll(more);
        return config;
    }

    private String topic(String name) {
        return prefix + "-" + name;
    }

    private static <T> T got(org.apache.kafka.common.KafkaFuture<T> future) throws Exception {
        return future.get(SECONDS, TimeUnit.SECONDS);
    }

    // ---- producers

    private void topics() throws Exception {
        List<String> names = List.of("numbers", "moved", "copied", "short");
        got(admin.createTopics(names.stream().map(each -> new NewTopic(topic(each), 2, (short) 1)).toList()).all());
        got(admin.createPartitions(Map.of(topic("short"), NewPartitions.increaseTo(3))).all());
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
        int partitions = 0;
        while (partitions != 3 && System.nanoTime() < end) { // the brokers learn of them a little later
            partitions = got(admin.describeTopics(List.of(topic("short"))).allTopicNames())
                .get(topic("short")).partitions().size();
        }
        expect(partitions == 3, partitions);
        got(admin.deleteTopics(List.of(topic("short"))).all());
    }

    private void send(KafkaProducer<String, String> producer, String name, String value) {
        for (int number = 0; number < RECORDS; number++) {
            producer.send(new ProducerRecord<>(topic(name), number % 2, "" + number, value + number));
        }
    }

    private void idempotent() throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config(Map.of()))) {
            send(producer, "numbers", "");
            long offset = producer.send(new ProducerRecord<>(topic("numbers"), 0, "last", "last"))
                .get(SECONDS, TimeUnit.SECONDS).offset();
            expect(offset == RECORDS / 2, offset);
        }
    }

    /** One transaction is committed, and one is aborted. */
    private void transactional() throws Exception {
        Map<String, Object> more = Map.of("transactional.id", topic("transactional"));
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config(more))) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, "moved", "");
            producer.commitTransaction();
            producer.beginTransaction();
            send(producer, "moved", "aborted ");
            producer.flush();
            producer.abortTransaction();
        }
    }

    // ---- groups

    private KafkaConsumer<String, String> consumer(String group, String protocol) {
        return new KafkaConsumer<>(config(Map.of(
            "group.id", topic(group), "group.protocol", protocol, "auto.offset.reset", "earliest",
            "enable.auto.commit", "false", "isolation.level", "read_committed")));
    }

    private static void poll(
        Collection<KafkaConsumer<String, String>> consumers, Set<String> values, Predicate<Set<String>> enough
    ) {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
        while (!enough.test(values) && System.nanoTime() < end) {
            for (KafkaConsumer<String, String> consumer : consumers) {
                consumer.poll(Duration.ofMillis(200)).forEach(each -> values.add(each.value()));
            }
        }
    }

    private void group(String protocol) {
        Set<String> values = new java.util.HashSet<>();
        try (KafkaConsumer<String, String> consumer = consumer(protocol, protocol)) {
            consumer.subscribe(List.of(topic("moved")));
            poll(List.of(consumer), values, seen -> seen.size() >= RECORDS);
            consumer.commitSync();
            long committed = consumer.committed(consumer.assignment()).values().stream()
                .mapToLong(OffsetAndMetadata::offset).sum();
            expect(committed >= RECORDS, committed);
        }
        expect(values.size() == RECORDS && values.stream().noneMatch(each -> each.startsWith("aborted")), values.size());
    }

    private void twoMembers() {
        try (KafkaConsumer<String, String> one = consumer("two", "consumer");
             KafkaConsumer<String, String> other = consumer("two", "consumer")) {
            List<KafkaConsumer<String, String>> both = List.of(one, other);
            both.forEach(each -> each.subscribe(List.of(topic("numbers"))));
            Set<String> values = new java.util.HashSet<>();
            poll(both, values, seen -> both.stream().allMatch(each -> each.assignment().size() == 1));
            expect(one.assignment().size() == 1 && other.assignment().size() == 1, one.assignment());
        }
    }

    /** Offsets are committed in the transactions of the copies: TxnOffsetCommit. */
    private void copy() {
        Map<String, Object> more = Map.of("transactional.id", topic("copy"));
        Set<String> values = new java.util.HashSet<>();
        try (KafkaConsumer<String, String> consumer = consumer("copy", "consumer");
             KafkaProducer<String, String> producer = new KafkaProducer<>(config(more))) {
            producer.initTransactions();
            consumer.subscribe(List.of(topic("moved")));
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
            while (values.size() < RECORDS && System.nanoTime() < end) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<String, String> each : records) {
                    producer.send(new ProducerRecord<>(topic("copied"), each.key(), each.value()));
                    values.add(each.value());
                    offsets.put(
                        new TopicPartition(each.topic(), each.partition()), new OffsetAndMetadata(each.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
            }
            long committed = consumer.committed(consumer.assignment()).values().stream()
                .mapToLong(OffsetAndMetadata::offset).sum();
            expect(values.size() == RECORDS && committed >= RECORDS, values.size() + " " + committed);
        }
    }

    private void share(String mode) throws Exception {
        String group = topic("share-" + mode);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        AlterConfigOp earliest =
            new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
        got(admin.incrementalAlterConfigs(Map.of(resource, List.of(earliest))).all());
        Set<String> values = new java.util.HashSet<>();
        Map<String, Object> more = Map.of("group.id", group, "share.acknowledgement.mode", mode);
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(config(more))) {
            consumer.subscribe(List.of(topic("numbers")));
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
            while (values.size() <= RECORDS && System.nanoTime() < end) {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(500))) {
                    values.add(each.value());
                    if (mode.equals("explicit")) {
                        consumer.acknowledge(each, AcknowledgeType.ACCEPT);
                    }
                }
                consumer.commitSync().values().forEach(each -> expect(each.isEmpty(), each));
            }
        }
        expect(values.size() == RECORDS + 1, values.size());
    }

    // ---- operators

    private void configs() throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic("numbers"));
        AlterConfigOp set = new AlterConfigOp(new ConfigEntry("retention.ms", "123456"), AlterConfigOp.OpType.SET);
        got(admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all());
        String value = got(admin.describeConfigs(List.of(resource)).all()).get(resource).get("retention.ms").value();
        expect(value.equals("123456"), value);
    }

    private void offsets() throws Exception {
        TopicPartition first = new TopicPartition(topic("numbers"), 0);
        long latest = got(admin.listOffsets(Map.of(first, OffsetSpec.latest())).all()).get(first).offset();
        expect(latest == RECORDS / 2 + 1, latest);
    }

    private void groups() throws Exception {
        Set<String> names = got(admin.listGroups().all()).stream().map(each -> each.groupId())
            .collect(Collectors.toSet());
        expect(names.containsAll(List.of(topic("classic"), topic("consumer"), topic("share-implicit"))), names);
        List<String> ended = List.of(topic("classic"), topic("consumer"));
        got(admin.describeConsumerGroups(ended).all());
        got(admin.deleteConsumerGroups(ended).all());
    }

    private void cluster() throws Exception {
        int nodes = got(admin.describeCluster().nodes()).size();
        expect(nodes >= 1, nodes);
        got(admin.describeMetadataQuorum().quorumInfo());
        got(admin.describeFeatures().featureMetadata());
        got(admin.listTransactions().all());
    }
}
