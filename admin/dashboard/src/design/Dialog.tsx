import { useEffect, useId, useRef, type ReactNode } from "react";
import "./dialog.css";

/**
 * Modal dialog, open while it is mounted. The browser keeps the focus inside and restores it
 * afterwards. Escape and a click outside close it, unless `isBusy`.
 */
export function Dialog({
  title,
  onClose,
  isBusy = false,
  children,
}: {
  title: string;
  onClose: () => void;
  isBusy?: boolean;
  children: ReactNode;
}) {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = box.current;
    const before = document.activeElement;
    dialog?.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  const close = () => {
    if (!isBusy) onClose();
  };
  return (
    <dialog
      ref={box}
      className="dialog"
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        close();
      }}
      onClick={(event) => {
        if (event.target === box.current) close();
      }}
    >
      <div className="dialog-body">
        <h2 id={id}>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}
