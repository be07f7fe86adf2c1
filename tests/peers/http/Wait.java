// Asks for one answer after the other with one client of the JDK, as wait.py does:
//   java Wait.java client|connection METHOD=URL...

import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;

public class Wait {
    private static final String BODY = "{\"name\":\"box\"}";

    private static String[] byClient(String method, String url, boolean hides) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        HttpRequest.BodyPublisher body = method.equals("POST")
            ? HttpRequest.BodyPublishers.ofString(BODY) : HttpRequest.BodyPublishers.noBody();
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url)).timeout(Duration.ofSeconds(20)).method(method, body);
        if (hides) request.header("User-Agent", "any");
        HttpResponse<String> reply = client.send(request.build(), HttpResponse.BodyHandlers.ofString());
        return new String[] {"" + reply.statusCode(), reply.body()};
    }

    private static String[] byConnection(String method, String url, boolean hides) throws Exception {
        HttpURLConnection connection = (HttpURLConnection) URI.create(url).toURL().openConnection();
        connection.setReadTimeout(20_000);
        connection.setRequestMethod(method);
        if (hides) connection.setRequestProperty("User-Agent", "any");
        if (method.equals("POST")) {
            connection.setDoOutput(true);
            connection.getOutputStream().write(BODY.getBytes());
        }
        int status = connection.getResponseCode();
        // It takes all that follows for the body, to the end of the connection.
        if (status < 200) return new String[] {"" + status, ""};
        InputStream body = status < 400 ? connection.getInputStream() : connection.getErrorStream();
        return new String[] {"" + status, body == null ? "" : new String(body.readAllBytes())};
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n").replace("\r", "\\r") + '"';
    }

    public static void main(String[] args) {
        for (int i = 1; i < args.length; i++) {
            int at = args[i].indexOf('=');
            boolean hides = args[i].charAt(at - 1) == '!';
            String method = args[i].substring(0, hides ? at - 1 : at), url = args[i].substring(at + 1);
            try {
                String[] seen = args[0].equals("client") ? byClient(method, url, hides) : byConnection(method, url, hides);
                System.out.println("{\"status\":" + seen[0] + ",\"body\":" + quoted(seen[1]) + "}");
            } catch (Exception error) {
                System.out.println("{\"error\":" + quoted("" + error) + "}");
            }
        }
        System.exit(0);
    }
}
