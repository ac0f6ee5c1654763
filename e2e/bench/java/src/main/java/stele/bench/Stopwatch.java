package stele.bench;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;

/** Times two parts in a row, and what both take of this thread's processor; it runs from its making on. */
public final class Stopwatch {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private final long processor = THREADS.getCurrentThreadCpuTime();
    private final long begin = System.nanoTime();
    private long middle;

    /** The second part begins. */
    public void next() {
        middle = System.nanoTime();
    }

    /** Nanoseconds of the first part, of the second, and of the processor. */
    public long[] stop() {
        long end = System.nanoTime();
        return new long[] {middle - begin, end - middle, THREADS.getCurrentThreadCpuTime() - processor};
    }
}
