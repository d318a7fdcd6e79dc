import { defineConfig } from "vitest/config";

// The page lies beside its files under /ui/, at whatever address the server has: all names are
// relative and flat. The policy of the page forbids inline scripts and styles, so nothing is inlined.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../ui/static",
    emptyOutDir: true,
    assetsDir: "",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    chunkSizeWarningLimit: 800,
  },
  server: {
    // `npm run dev` beside a server of fngate; FN_URL names another than the usual one.
    proxy: Object.fromEntries(
      ["/admin", "/fn", "/readyz"].map((path) => [path, process.env["FN_URL"] ?? "http://127.0.0.1:8080"]),
    ),
  },
  test: { include: ["src/**/*.test.ts"], environment: "node", passWithNoTests: false },
});
