// Reads bodies as servers in Java do. See peer.py for the lines of stdin and stdout.
//
// Run with `java -cp jackson-core.jar:jackson-databind.jar:jackson-annotations.jar:gson.jar Peer.java jackson`,
// or `gson`. XML is read with the DOM of the JDK.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.gson.JsonElement;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import javax.xml.parsers.DocumentBuilderFactory;
import org.w3c.dom.Document;
import org.w3c.dom.Element;
import org.w3c.dom.Node;
import org.w3c.dom.NodeList;

public class Peer {
    static final ObjectMapper MAPPER = new ObjectMapper();

    static Object jackson(byte[] body, String place) throws Exception {
        JsonNode value = MAPPER.readTree(body).at(place);
        if (value.isTextual()) return value.textValue();
        return value.isNumber() ? value.doubleValue() : null;
    }

    static Object gson(byte[] body, String place) throws Exception {
        JsonElement value = JsonParser.parseString(new String(body, StandardCharsets.UTF_8));
        for (String step : place.substring(1).split("/")) {
            if (value == null || !value.isJsonObject()) return null;
            value = value.getAsJsonObject().get(step);
        }
        if (!(value instanceof JsonPrimitive plain)) return null;
        if (plain.isString()) return plain.getAsString();
        return plain.isNumber() ? plain.getAsDouble() : null;
    }

    static Object xml(byte[] body, String place) throws Exception {
        var builder = DocumentBuilderFactory.newInstance().newDocumentBuilder();
        builder.setErrorHandler(null);
        Document document = builder.parse(new ByteArrayInputStream(body));
        boolean isMethod = place.equals("methodName");
        NodeList found = document.getElementsByTagName(isMethod ? place : "param");
        if (found.getLength() == 0) return null;
        Node element = found.item(0);
        if (isMethod) return element.getTextContent();
        var value = (Element) ((Element) element).getElementsByTagName("value").item(0);
        if (value == null) return null;
        NodeList type = value.getElementsByTagName("*");
        return (type.getLength() == 0 ? value : type.item(0)).getTextContent();
    }

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            JsonNode question = MAPPER.readTree(line);
            byte[] body = HexFormat.of().parseHex(question.get("hex").textValue());
            String place = question.get("place").textValue();
            Object value;
            try {
                if (question.get("kind").textValue().equals("xml")) value = xml(body, place);
                else value = arguments[0].equals("gson") ? gson(body, place) : jackson(body, place);
            } catch (Exception | StackOverflowError refused) {
                value = false;
            }
            System.out.println(MAPPER.writeValueAsString(value));
        }
    }
}
