// The one dialog that may be open. What had the focus before has it again when the dialog is closed.

/** @param {string} label @returns {HTMLDialogElement} */
export function openDialog(label) {
  document.querySelector("dialog")?.close();
  const dialog = document.createElement("dialog");
  const before = /** @type {HTMLElement?} */ (document.activeElement);
  dialog.setAttribute("aria-label", label);
  document.body.append(dialog);
  dialog.addEventListener("close", () => {
    dialog.remove();
    before?.focus();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  addEventListener("hashchange", () => dialog.close(), { once: true });
  dialog.showModal();
  return dialog;
}
