// Sends the form of record.py with Go's own writer: go run forms.go URL.
package main

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"os"
)

func main() {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	file, _ := form.CreateFormFile("file", "12\" naïve.wav")
	file.Write([]byte("RIFF\x00\r\n--\r\n"))
	for _, text := range [][2]string{
		{"model", "whisper-1"}, {"language", "en"}, {"prompt", "café"}, {"a\"b", "1"}, {"a\\b", "2"},
	} {
		form.WriteField(text[0], text[1])
	}
	form.Close()
	answer, err := http.Post(os.Args[1]+"/go_mime_multipart", form.FormDataContentType(), &body)
	if err != nil {
		panic(err)
	}
	answer.Body.Close()
}
