import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32;
import java.util.zip.Deflater;

/** Work of many kinds for so many seconds: compiled code, the garbage collector, the JVM's own compilers. */
public final class Busy {
    private static Map<String, Object> tree(int depth) {
        Map<String, Object> node = new HashMap<>();
        for (int i = 0; depth > 0 && i < 4; i++) node.put("key-" + i, tree(depth - 1));
        return node;
    }

    private static long round(long seed) {
        String text = tree(6).toString();
        List<Integer> numbers = new ArrayList<>();
        for (int i = 0; i < text.length(); i++) numbers.add((int) (text.charAt(i) * seed % 1009));
        Collections.sort(numbers);
        byte[] packed = new byte[text.length() + 64];
        Deflater deflater = new Deflater();
        deflater.setInput(text.getBytes());
        deflater.finish();
        CRC32 sum = new CRC32();
        sum.update(packed, 0, deflater.deflate(packed));
        deflater.end();
        return sum.getValue() + numbers.get(numbers.size() / 2);
    }

    public static void main(String[] arguments) throws InterruptedException {
        long end = System.nanoTime() + Long.parseLong(arguments[0]) * 1_000_000_000L;
        long total = 0;
        while (System.nanoTime() < end) {
            total += round(total + 1);
            Thread.sleep(2);
        }
        System.out.println(total);
    }
}
