import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterClientQuotasOptions;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;

/**
 * Alters and describes client quotas with the Java Admin client, the way operators' tools do. It prints a line for each
 * step: its name, and what was read back or refused. Arguments: BOOTSTRAP CLIENT_ID.
 */
public final class QuotaChecks {
    private static final long SECONDS = 60;
    private static Admin admin;

    private QuotaChecks() {}

    public static void main(String[] arguments) throws Exception {
        String id = arguments[1];
        Map<String, String> ofClient = Map.of("client-id", id);
        Map<String, String> ofDefault = new HashMap<>();
        ofDefault.put("client-id", null);
        Map<String, String> ofPair = Map.of("user", "alice", "client-id", id);
        Map<String, String> ofAddress = Map.of("ip", "10.9.8.7");
        try (Admin opened = Admin.create(Map.of("bootstrap.servers", arguments[0], "client.id", "quota-checks"))) {
            admin = opened;
            print("validate", alter(true, ofClient, "producer_byte_rate", 1.0));
            print("nothing", describe(ofClient));
            for (int round = 1; round <= 5; round++) {  // strict, and at once
                alter(false, ofClient, "producer_byte_rate", 1_000_000.0 * round);
                print("round " + round, describe(ofClient));
            }
            print("pair", alter(false, ofPair, "consumer_byte_rate", 7e6) + describe(ofPair));
            print("default", alter(false, ofDefault, "producer_byte_rate", 9e6) + describe(ofDefault));
            print("address", alter(false, ofAddress, "connection_creation_rate", 20.0) + describe(ofAddress));
            print("batch", batch(id));
            print("unknown", alter(false, ofClient, "producer_byte_rat", 1.0));
            print("not positive", alter(false, ofClient, "producer_byte_rate", 0.0));
            print("absent", alter(false, Map.of("user", "nobody"), "request_percentage", null));
            alter(false, ofDefault, "producer_byte_rate", null);
            alter(false, ofPair, "consumer_byte_rate", null);
            alter(false, ofAddress, "connection_creation_rate", null);
            print("removed", describe(ofDefault) + describe(ofPair) + describe(ofAddress));
        }
    }

    /** As Strimzi's user operator: several users, each with all keys, most of them removed. */
    private static String batch(String id) throws Exception {
        List<ClientQuotaAlteration> alterations = Arrays.asList(strimzi(id + "-1", 12.5), strimzi(id + "-2", 25.0));
        admin.alterClientQuotas(alterations).all().get(SECONDS, TimeUnit.SECONDS);
        return describe(Map.of("user", id + "-1")) + describe(Map.of("user", id + "-2"));
    }

    private static ClientQuotaAlteration strimzi(String user, double percentage) {
        return new ClientQuotaAlteration(
                new ClientQuotaEntity(Map.of("user", user)),
                Arrays.asList(
                        new ClientQuotaAlteration.Op("producer_byte_rate", null),
                        new ClientQuotaAlteration.Op("consumer_byte_rate", 3e6),
                        new ClientQuotaAlteration.Op("request_percentage", percentage),
                        new ClientQuotaAlteration.Op("controller_mutation_rate", null)));
    }

    private static String alter(boolean validateOnly, Map<String, String> entity, String key, Double value)
            throws Exception {
        ClientQuotaAlteration alteration =
                new ClientQuotaAlteration(
                        new ClientQuotaEntity(entity),
                        Collections.singletonList(new ClientQuotaAlteration.Op(key, value)));
        AlterClientQuotasOptions options = new AlterClientQuotasOptions().validateOnly(validateOnly);
        return done(admin.alterClientQuotas(Collections.singletonList(alteration), options).all());
    }

    private static String describe(Map<String, String> entity) throws Exception {
        List<ClientQuotaFilterComponent> components =
                entity.entrySet().stream()
                        .map(
                                each ->
                                        each.getValue() == null
                                                ? ClientQuotaFilterComponent.ofDefaultEntity(each.getKey())
                                                : ClientQuotaFilterComponent.ofEntity(each.getKey(), each.getValue()))
                        .toList();
        Map<ClientQuotaEntity, Map<String, Double>> found =
                admin.describeClientQuotas(ClientQuotaFilter.containsOnly(components))
                        .entities()
                        .get(SECONDS, TimeUnit.SECONDS);
        return new TreeMap<>(found.getOrDefault(new ClientQuotaEntity(entity), Map.of())).toString();
    }

    private static String done(KafkaFuture<Void> future) throws Exception {
        try {
            future.get(SECONDS, TimeUnit.SECONDS);
            return "";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName() + ": " + error.getCause().getMessage();
        }
    }

    private static void print(String name, String text) {
        System.out.println(name + ": " + text);
    }
}
