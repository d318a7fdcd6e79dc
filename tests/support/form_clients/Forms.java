import static org.apache.hc.client5.http.entity.mime.HttpMultipartMode.EXTENDED;

import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import okhttp3.MediaType;
import okhttp3.MultipartBody;
import okhttp3.OkHttpClient;
import okhttp3.Request;
import okhttp3.RequestBody;
import org.apache.http.client.methods.HttpPost;
import org.apache.http.entity.ContentType;
import org.apache.http.entity.mime.HttpMultipartMode;
import org.apache.http.entity.mime.MultipartEntityBuilder;
import org.apache.http.impl.client.CloseableHttpClient;
import org.apache.http.impl.client.HttpClients;
import org.springframework.core.io.ByteArrayResource;
import org.springframework.util.LinkedMultiValueMap;
import org.springframework.web.client.RestTemplate;

/** Sends the form of record.py with each of Java's clients: java Forms.java URL. */
public class Forms {
    static final String FILE_NAME = "12\" na\u00efve.wav";
    static final byte[] SOUND = "RIFF\0\r\n--\r\n".getBytes(StandardCharsets.UTF_8);
    static final String[][] TEXTS = {
        {"model", "whisper-1"}, {"language", "en"}, {"prompt", "caf\u00e9"}, {"a\"b", "1"},
    };

    public static void main(String[] given) throws Exception {
        String url = given[0];
        apache(url + "/apache_4_strict", HttpMultipartMode.STRICT, null);
        apache(url + "/apache_4_browser", HttpMultipartMode.BROWSER_COMPATIBLE, null);
        apache(url + "/apache_4_browser_utf8", HttpMultipartMode.BROWSER_COMPATIBLE,
            StandardCharsets.UTF_8);
        apache(url + "/apache_4_latin1", HttpMultipartMode.STRICT, StandardCharsets.ISO_8859_1);
        apache(url + "/apache_4_rfc6532", HttpMultipartMode.RFC6532, null);
        for (var mode : org.apache.hc.client5.http.entity.mime.HttpMultipartMode.values()) {
            apache5(url + "/apache_5_" + mode.name().toLowerCase(), mode);
        }
        okhttp(url + "/okhttp_3");
        spring(url + "/spring_4", false);
        spring(url + "/spring_4_quote", true);
        byHand(url + "/java_11_by_hand");
    }

    static void apache(String url, HttpMultipartMode mode, Charset charset) throws Exception {
        MultipartEntityBuilder form = MultipartEntityBuilder.create().setMode(mode);
        if (charset != null) {
            form.setCharset(charset);
        }
        form.addBinaryBody("file", SOUND, ContentType.create("audio/wav"), FILE_NAME);
        for (String[] text : TEXTS) {
            form.addTextBody(text[0], text[1]);
        }
        HttpPost post = new HttpPost(url);
        post.setEntity(form.build());
        try (CloseableHttpClient client = HttpClients.createDefault()) {
            client.execute(post).close();
        }
    }

    static void apache5(String url, org.apache.hc.client5.http.entity.mime.HttpMultipartMode mode)
            throws Exception {
        var form = org.apache.hc.client5.http.entity.mime.MultipartEntityBuilder.create();
        form.setMode(mode);
        form.addBinaryBody("file", SOUND, org.apache.hc.core5.http.ContentType.create("audio/wav"),
            FILE_NAME);
        for (String[] text : TEXTS) {
            // This mode escapes no quotes in names of fields.
            if (mode != EXTENDED || !text[0].contains("\"")) {
                form.addTextBody(text[0], text[1]);
            }
        }
        var post = new org.apache.hc.client5.http.classic.methods.HttpPost(url);
        post.setEntity(form.build());
        try (var client = org.apache.hc.client5.http.impl.classic.HttpClients.createDefault()) {
            client.execute(post, answer -> null);
        }
    }

    static void okhttp(String url) throws Exception {
        MultipartBody.Builder form = new MultipartBody.Builder().setType(MultipartBody.FORM);
        form.addFormDataPart("file", FILE_NAME,
            RequestBody.create(MediaType.parse("audio/wav"), SOUND));
        for (String[] text : TEXTS) {
            form.addFormDataPart(text[0], text[1]);
        }
        Request post = new Request.Builder().url(url).post(form.build()).build();
        new OkHttpClient().newCall(post).execute().close();
    }

    /** Spring 4 escapes no quotes in names of fields. */
    static void spring(String url, boolean hasQuote) {
        LinkedMultiValueMap<String, Object> form = new LinkedMultiValueMap<>();
        form.add("file", new ByteArrayResource(SOUND) {
            @Override
            public String getFilename() {
                return FILE_NAME;
            }
        });
        for (String[] text : TEXTS) {
            if (hasQuote || !text[0].contains("\"")) {
                form.add(text[0], text[1]);
            }
        }
        new RestTemplate().postForObject(url, form, String.class);
    }

    /** As many programs do it that have no library: "=" in the boundary, a type for each text. */
    static void byHand(String url) throws Exception {
        String boundary = "===1700000000000===";
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        for (String[] text : TEXTS) {
            body.write(("--" + boundary + "\r\nContent-Disposition: form-data; name=\""
                + text[0].replace("\"", "%22") + "\"\r\nContent-Type: text/plain; charset=UTF-8"
                + "\r\n\r\n" + text[1] + "\r\n").getBytes(StandardCharsets.UTF_8));
        }
        body.write(("--" + boundary + "\r\nContent-Disposition: form-data; name=\"file\"; "
            + "filename=\"na\u00efve.wav\"\r\nContent-Type: audio/wav\r\n"
            + "Content-Transfer-Encoding: binary\r\n\r\n").getBytes(StandardCharsets.UTF_8));
        body.write(SOUND);
        body.write(("\r\n\r\n--" + boundary + "--\r\n").getBytes(StandardCharsets.UTF_8));
        HttpRequest post = HttpRequest.newBuilder(URI.create(url))
            .version(HttpClient.Version.HTTP_1_1)
            .header("Content-Type", "multipart/form-data; boundary=" + boundary)
            .POST(HttpRequest.BodyPublishers.ofByteArray(body.toByteArray())).build();
        HttpClient.newHttpClient().send(post, HttpResponse.BodyHandlers.discarding());
    }
}
