import { useState, type FormEvent } from "react";
import "./login.css";

/** Login form. `known` is a key that could not be checked because the server was unreachable. */
export function Login({ why, isAsking, known, onKey }: { why: string; isAsking: boolean; known: string; onKey: (key: string) => void }) {
  const [key, setKey] = useState(known);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (key.trim()) onKey(key.trim());
  };
  return (
    <main className="login">
      <form className="panel login-box" onSubmit={submit} aria-busy={isAsking}>
        <h1>
          <img src="./icon.svg" width="22" height="22" alt="" /> fngate
        </h1>
        <label className="label" htmlFor="key">
          Access key
        </label>
        <input
          id="key"
          className="field mono"
          type="password"
          autoComplete="off"
          spellCheck={false}
          autoFocus
          value={key}
          onChange={(event) => setKey(event.target.value)}
          aria-describedby="key-hint"
        />
        <p id="key-hint" className="muted small">
          The admin token in <code>DATA/admin.token</code>, or a key with the scope <code>read</code>. <code>fnctl ui</code> opens this
          page with it. It stays in this tab.
        </p>
        <p className={why ? "note bad" : "unseen"} role="alert">
          {why}
        </p>
        <button className="button primary" type="submit" disabled={isAsking || !key.trim()}>
          {isAsking ? "Connecting …" : "Open the dashboard"}
        </button>
        <a href="#/docs" className="small">
          Routes of this server
        </a>
      </form>
    </main>
  );
}
