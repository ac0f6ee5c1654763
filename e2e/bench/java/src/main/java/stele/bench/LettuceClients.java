package stele.bench;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import io.lettuce.core.api.sync.RedisStringCommands;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.codec.RedisCodec;
import io.lettuce.core.codec.StringCodec;
import java.io.File;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;

/**
 * Lettuce 6: "lettuce-cluster" routes by slots, "lettuce" asks one server. Each thread has a connection of its own, as with
 * the pools of Jedis, so that all clients use as many.
 */
final class LettuceClients extends Grid {
    private static final int CONNECTIONS_MAX = 32;
    private static final RedisCodec<String, byte[]> CODEC = RedisCodec.of(StringCodec.UTF8, ByteArrayCodec.INSTANCE);
    private final Map<Integer, RedisStringCommands<String, byte[]>> connections = new ConcurrentHashMap<>();
    private final AtomicInteger threads = new AtomicInteger();
    private final ThreadLocal<RedisStringCommands<String, byte[]>> own;

    /** `members` are addresses HOST:PORT with commas between; with a CA's file, they take TLS and a password. */
    LettuceClients(String system, String members, String ca, String password) {
        List<RedisURI> all = Arrays.stream(members.split(",")).map(each -> address(each, ca != null, password)).toList();
        SslOptions tls = ca == null ? SslOptions.create() : SslOptions.builder().trustManager(new File(ca)).build();
        Supplier<RedisStringCommands<String, byte[]>> connect =
            system.equals("lettuce-cluster") ? cluster(all, tls) : single(all.get(0), tls);
        own = ThreadLocal.withInitial(
            () -> connections.computeIfAbsent(threads.getAndIncrement() % CONNECTIONS_MAX, place -> connect.get()));
    }

    private static RedisURI address(String member, boolean tls, String password) {
        String[] parts = member.split(":");
        RedisURI.Builder made = RedisURI.Builder.redis(parts[0], Integer.parseInt(parts[1])).withSsl(tls);
        return password == null ? made.build() : made.withPassword(password.toCharArray()).build();
    }

    /** The defaults but for what docs/reference/clients.md says that Lettuce 6 needs to follow members. */
    private static Supplier<RedisStringCommands<String, byte[]>> cluster(List<RedisURI> members, SslOptions tls) {
        RedisClusterClient client = RedisClusterClient.create(members);
        ClusterTopologyRefreshOptions refresh = ClusterTopologyRefreshOptions.builder()
            .enableAllAdaptiveRefreshTriggers()
            .adaptiveRefreshTriggersTimeout(Duration.ofSeconds(5))
            .build();
        client.setOptions(ClusterClientOptions.builder()
            .validateClusterNodeMembership(false).topologyRefreshOptions(refresh).sslOptions(tls).build());
        client.refreshPartitions(); // else each of the first connections reads the map
        return () -> client.connect(CODEC).sync();
    }

    private static Supplier<RedisStringCommands<String, byte[]>> single(RedisURI server, SslOptions tls) {
        RedisClient client = RedisClient.create(server);
        client.setOptions(ClientOptions.builder().sslOptions(tls).build());
        return () -> client.connect(CODEC).sync();
    }

    @Override byte[] get(String key) {
        return own.get().get(key);
    }

    @Override void set(String key, byte[] value) {
        own.get().set(key, value);
    }

    @Override boolean isQuiet(int members) {
        throw new UnsupportedOperationException("ask a member");
    }

    @Override String[][] table() {
        throw new UnsupportedOperationException("ask a member");
    }
}
