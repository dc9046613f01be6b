package kafka.server.share;

import java.util.Comparator;
import java.util.PriorityQueue;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.timer.Timer;
import org.apache.kafka.server.util.timer.TimerTask;
import org.apache.kafka.server.util.timer.TimerTaskEntry;

import java.util.function.Supplier;

/** A clock that stands still until it is told to go on, and the timer that belongs to it: tasks run in due order. */
final class DrivenTimer implements Timer, Time {
    private record Due(TimerTaskEntry entry, long order) { }

    private final PriorityQueue<Due> queue = new PriorityQueue<>(
        Comparator.<Due>comparingLong(due -> due.entry().expirationMs).thenComparingLong(Due::order));
    private long nowMs;
    private long added;

    @Override
    public void add(TimerTask task) {
        queue.add(new Due(new TimerTaskEntry(task, nowMs + task.delayMs), added++));
    }

    /** Runs what is due first before a time, and moves the clock one millisecond past it; false where nothing is. */
    boolean runNext(long untilMs) {
        while (!queue.isEmpty() && queue.peek().entry().cancelled()) {
            queue.remove();
        }
        if (queue.isEmpty() || queue.peek().entry().expirationMs >= untilMs) {
            return false;
        }
        long dueMs = queue.peek().entry().expirationMs;
        nowMs = Math.max(nowMs, dueMs + 1);
        while (!queue.isEmpty() && queue.peek().entry().expirationMs == dueMs) {
            TimerTaskEntry entry = queue.remove().entry();
            if (!entry.cancelled()) {
                entry.timerTask.run();
            }
        }
        return true;
    }

    void moveTo(long ms) {
        nowMs = Math.max(nowMs, ms);
    }

    @Override
    public boolean advanceClock(long timeoutMs) {
        throw new UnsupportedOperationException("the test moves the clock");
    }

    @Override
    public int size() {
        return (int) queue.stream().filter(due -> !due.entry().cancelled()).count();
    }

    @Override
    public void close() {
        queue.clear();
    }

    @Override
    public long milliseconds() {
        return nowMs;
    }

    @Override
    public long nanoseconds() {
        return nowMs * 1_000_000;
    }

    @Override
    public void sleep(long ms) {
        throw new UnsupportedOperationException("nothing here waits");
    }

    @Override
    public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
        throw new UnsupportedOperationException("nothing here waits");
    }
}
