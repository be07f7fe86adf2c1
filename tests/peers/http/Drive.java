import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;

/**
 * Asks an HTTP service for everything in tests/it/real_clients.rs with the client of the JDK:
 * {@code java Drive.java HTTP_2|HTTP_1_1 URL ONE_AT_A_TIME KEPT DIRECT}. Prints one line of JSON for each request, as drive.py
 * does. HTTP_2 is the client's default: it offers h2c in its first request.
 */
public class Drive {
  static final Duration LONGEST = Duration.ofSeconds(5);
  static HttpClient client;

  record Seen(int status, String body) {}

  static byte[] pattern(int length) {
    byte[] bytes = new byte[length];
    for (int i = 0; i < length; i += 1) bytes[i] = (byte) (i % 251);
    return bytes;
  }

  static String summary(byte[] body) {
    if (body.length <= 200) return new String(body, StandardCharsets.ISO_8859_1);
    boolean same = Arrays.equals(body, pattern(body.length));
    return body.length + " bytes " + (same ? "as sent" : "that are wrong");
  }

  static HttpRequest.Builder to(String url) {
    return HttpRequest.newBuilder(URI.create(url)).timeout(LONGEST);
  }

  static HttpResponse<byte[]> reply(HttpRequest.Builder request) throws Exception {
    return client.send(request.build(), BodyHandlers.ofByteArray());
  }

  static Seen ask(HttpRequest.Builder request) throws Exception {
    HttpResponse<byte[]> reply = reply(request);
    return new Seen(reply.statusCode(), summary(reply.body()));
  }

  static Seen post(String url, BodyPublisher body, boolean expect) throws Exception {
    return ask(to(url).POST(body).expectContinue(expect));
  }

  static Seen statuses(List<HttpResponse<byte[]>> replies) {
    long right = replies.stream().filter(it -> it.statusCode() == 200 && summary(it.body()).equals("small")).count();
    return new Seen(200, right + " of " + replies.size());
  }

  static String quoted(Object text) {
    return '"' + String.valueOf(text).replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ") + '"';
  }

  static void observe(String name, Callable<Seen> asking) {
    long began = System.nanoTime();
    String seen;
    try {
      Seen came = asking.call();
      seen = "\"status\":" + came.status + ",\"body\":" + quoted(came.body);
    } catch (Exception error) {
      seen = "\"error\":" + quoted(error);
    }
    long ms = (System.nanoTime() - began) / 1000000;
    System.out.println("{\"name\":" + quoted(name) + ",\"ms\":" + ms + "," + seen + "}");
  }

  public static void main(String[] args) {
    String url = args[1];
    HttpClient.Version version = HttpClient.Version.valueOf(args[0]);
    client = HttpClient.newBuilder().version(version).build();
    byte[] upload = pattern(300000);
    observe("small", () -> ask(to(url + "/small")));
    observe("large", () -> ask(to(url + "/large")));
    observe("echo", () -> post(url + "/echo", BodyPublishers.ofString("{\"name\":\"box\",\"size\":3}"), false));
    observe("upload_length", () -> post(url + "/upload", BodyPublishers.ofByteArray(upload), false));
    BodyPublisher chunks = BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(upload));
    observe("upload_chunks", () -> post(url + "/upload", chunks, false));
    observe("upload_expect", () -> post(url + "/upload", BodyPublishers.ofByteArray(upload), true));
    observe("refused_expect", () -> post(url + "/refused", BodyPublishers.ofByteArray(upload), true));
    observe("head", () -> {
      HttpResponse<byte[]> reply = reply(to(url + "/large").method("HEAD", BodyPublishers.noBody()));
      String length = reply.headers().firstValue("content-length").orElse("nothing");
      return new Seen(reply.statusCode(), reply.body().length + " bytes of " + length);
    });
    observe("none", () -> ask(to(url + "/none")));
    observe("chunked", () -> ask(to(url + "/chunked")));
    observe("closed", () -> ask(to(url + "/closed")));
    for (int status : new int[] {302, 404, 500, 503}) {
      observe("status_" + status, () -> ask(to(url + "/status/" + status)));
    }
    observe("waiting", () -> {
      List<CompletableFuture<HttpResponse<byte[]>>> asked = new ArrayList<>();
      for (int i = 0; i < 3; i += 1) {
        asked.add(client.sendAsync(to(args[2] + "/slow").build(), BodyHandlers.ofByteArray()));
      }
      return statuses(asked.stream().map(CompletableFuture::join).toList());
    });
    for (String name : new String[] {"early", "early_direct"}) {
      String at = name.equals("early") ? url : args[4];
      for (int i = 0; i < 5; i += 1) {
        observe(name, () -> post(at + "/early", BodyPublishers.ofByteArray(pattern(20000000)), false));
      }
    }
    for (int i = 0; i < 3; i += 1) {
      BodyPublisher huge = BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(pattern(20000000)));
      observe("early_chunks", () -> post(url + "/early", huge, false));
    }
    observe("kept", () -> {
      List<HttpResponse<byte[]>> replies = new ArrayList<>();
      for (int i = 0; i < 20; i += 1) replies.add(reply(to(args[3] + "/small")));
      return statuses(replies);
    });
    System.exit(0);
  }
}
