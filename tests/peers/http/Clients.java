import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;

/** Calls a service with Java's client, in each form of a message. Prints `ok`, or what is wrong. */
class Clients {
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    static final byte[] BODY = new byte[300_000];

    static void expect(String what, Object got, Object wanted) {
        if (!got.equals(wanted)) {
            System.out.println(what + ": " + got + " instead of " + wanted);
            System.exit(1);
        }
    }

    static HttpRequest.Builder to(String url) {
        return HttpRequest.newBuilder(URI.create(url));
    }

    static String text(HttpRequest.Builder request) throws Exception {
        return CLIENT.send(request.build(), BodyHandlers.ofString()).body();
    }

    public static void main(String[] arguments) throws Exception {
        String base = arguments[0];
        for (int turn = 0; turn < 20; turn++) {
            expect("small", text(to(base + "/small")), "hello");
        }
        for (String path : new String[] {"/large", "/chunks", "/close"}) {
            expect(path, text(to(base + path)).length(), 5 << 20);
        }
        var empty = CLIENT.send(to(base + "/empty").build(), BodyHandlers.discarding());
        expect("204", empty.statusCode(), 204);
        expect("103", text(to(base + "/hints")), "hello");
        String length = String.valueOf(BODY.length);
        expect("upload", text(to(base + "/length").POST(BodyPublishers.ofByteArray(BODY))), length);
        var chunks = BodyPublishers.ofInputStream(() -> new java.io.ByteArrayInputStream(BODY));
        expect("chunks up", text(to(base + "/length").POST(chunks)), length);
        var expecting = to(base + "/length").expectContinue(true);
        expect("expected", text(expecting.POST(BodyPublishers.ofByteArray(BODY))), length);
        System.out.println("ok");
    }
}
