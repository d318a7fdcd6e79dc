/** Text with words in backticks as code. */
export function Marked({ text }: { text: string }) {
  return text.split("`").map((part, place) => (place % 2 ? <code key={place}>{part}</code> : part));
}
