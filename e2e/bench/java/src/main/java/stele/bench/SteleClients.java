package stele.bench;

import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.UnifiedJedis;

/**
 * Clients of Stele: Jedis with its defaults but for the size of its pools, which have a connection for each thread.
 * "stele-cluster" routes by slots; with "stele-proxy" each thread has a member that it asks everything.
 */
final class SteleClients extends Grid {
    private static final int CONNECTIONS_MAX = 64;
    /** What docs/reference/clients.md advises for Jedis. */
    private static final int ATTEMPTS_MAX = 60;
    private static final Duration RETRIES_MAX = Duration.ofSeconds(30);

    private final List<List<UnifiedJedis>> clients = new ArrayList<>();
    private final AtomicInteger threads = new AtomicInteger();
    private final ThreadLocal<Integer> own = ThreadLocal.withInitial(threads::getAndIncrement);

    private final JedisClientConfig config;
    private final List<HostAndPort> members;
    private final AtomicInteger connected = new AtomicInteger();
    private final ThreadLocal<Jedis> connections = ThreadLocal.withInitial(this::connect);

    /** `members` are addresses HOST:PORT with commas between; with a CA's file, they take TLS and a password. */
    SteleClients(String system, String members, String ca, String password) throws Exception {
        DefaultJedisClientConfig.Builder options =
            ca == null ? DefaultJedisClientConfig.builder() : secured(Path.of(ca), password);
        config = options.build();
        GenericObjectPoolConfig<Connection> pool = new GenericObjectPoolConfig<>();
        pool.setMaxTotal(CONNECTIONS_MAX);
        pool.setMaxIdle(CONNECTIONS_MAX);
        this.members = Arrays.stream(members.split(",")).map(HostAndPort::from).toList();
        Set<HostAndPort> all = Set.copyOf(this.members);
        for (int map = 0; map < MAPS; map++) {
            JedisClientConfig selecting = options.database(map).build();
            clients.add(system.equals("stele-cluster")
                ? List.of(new JedisCluster(all, selecting, ATTEMPTS_MAX, RETRIES_MAX, pool))
                : all.stream().map(each -> (UnifiedJedis) new JedisPooled(pool, each, selecting)).toList());
        }
    }

    private static DefaultJedisClientConfig.Builder secured(Path ca, String password) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (InputStream file = Files.newInputStream(ca)) {
            trusted.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return DefaultJedisClientConfig.builder()
            .ssl(true).sslSocketFactory(context.getSocketFactory()).password(password);
    }

    private UnifiedJedis client(String key) {
        List<UnifiedJedis> all = clients.get(mapOf(key));
        return all.get(own.get() % all.size());
    }

    @Override byte[] get(String key) {
        return client(key).get(key.getBytes(StandardCharsets.UTF_8));
    }

    @Override void set(String key, byte[] value) {
        client(key).set(key.getBytes(StandardCharsets.UTF_8), value);
    }

    /** WATCH, GET, then MULTI, SET, EXEC, which answers null when one of the keys has changed meanwhile. */
    @Override int transact(String kind, List<String> keys, byte[] value) {
        byte[][] names = keys.stream().map(key -> key.getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
        Jedis connection = connections.get();
        for (int tried = 0; ; tried++) {
            connection.watch(names);
            connection.mget(names);
            Transaction transaction = connection.multi();
            for (byte[] name : names) {
                transaction.set(name, value);
            }
            if (transaction.exec() != null) {
                return tried;
            }
        }
    }

    private Jedis connect() {
        HostAndPort member = members.get(connected.getAndIncrement() % members.size());
        return new Jedis(member, config);
    }

    @Override boolean isQuiet(int members) {
        throw new UnsupportedOperationException("ask a member");
    }

    @Override String[][] table() {
        throw new UnsupportedOperationException("ask a member");
    }
}
