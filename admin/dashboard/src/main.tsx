import { createRoot } from "react-dom/client";
import { App } from "./App.tsx";
import "./design/tokens.css";
import "./design/base.css";
import { startTheme } from "./design/theme.ts";

startTheme();
const root = document.getElementById("root");
if (root) createRoot(root).render(<App />);
