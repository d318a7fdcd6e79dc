// Sends the form of record.py with FormData, in Node and in a browser: node forms.mjs URL NAME.
export async function send(url) {
  const form = new FormData();
  const sound = new Blob(["RIFF\0\r\n--\r\n"], { type: "audio/wav" });
  form.append("file", sound, '12" na\u00efve\\.wav');
  for (const [name, text] of [
    ["model", "whisper-1"],
    ["language", "en"],
    ["prompt", "caf\u00e9"],
    ['a"b', "1"],
    ["a\nb", "2"],
    ["a\\", "3"],
  ]) {
    form.append(name, text);
  }
  await fetch(url, { method: "POST", body: form });
}

if (typeof process !== "undefined") await send(`${process.argv[2]}/node_form_data`);
