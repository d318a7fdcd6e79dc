import { ADMIN, type Client } from "../api/client.ts";
import { Problem, problemOf } from "../api/problem.ts";

/** Send a file with PUT; `onBytes` gets the bytes sent so far. Throws Problem, or AbortError after an abort. */
export type Upload = (client: Client, path: string, file: Blob, onBytes: (sent: number) => void, signal: AbortSignal) => Promise<void>;

/** By XMLHttpRequest: `fetch` does not say how much of a body it has sent. */
export const uploaded: Upload = (client, path, file, onBytes, signal) =>
  new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const abort = () => request.abort();
    const end = (problem?: unknown) => {
      signal.removeEventListener("abort", abort);
      if (problem === undefined) resolve();
      else reject(problem);
    };
    request.upload.onprogress = ({ loaded }) => onBytes(Math.min(loaded, file.size));
    request.onload = () => {
      const isDone = request.status >= 200 && request.status < 300;
      end(isDone ? undefined : problemOf(request.status, request.responseText));
    };
    request.onabort = () => end(new DOMException("the upload was cancelled", "AbortError"));
    request.onerror = () => end(new Problem(0, "unreachable", "The upload broke off", "the server cannot be reached, or the file was changed or removed meanwhile"));
    if (signal.aborted) return end(new DOMException("the upload was cancelled", "AbortError"));
    signal.addEventListener("abort", abort);
    request.open("PUT", ADMIN + path);
    request.setRequestHeader("Authorization", `Bearer ${client.key}`);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.send(file);
  });
