import { memo } from "react";
import type { FunctionDetail, InputRule, TensorSpec } from "../../api/types.ts";
import { CopyText } from "../../design/CopyText.tsx";

/** Inputs and outputs of the function, and a curl command to copy. */
export const SignaturePanel = memo(function SignaturePanel({ detail }: { detail: FunctionDetail }) {
  const { signature, inputs } = detail;
  const isOpen = signature.kind !== "tensors";
  return (
    <section className="panel" aria-labelledby="signature-title">
      <div className="panel-head">
        <h2 id="signature-title">Signature</h2>
        <span className="tag">{signature.kind}</span>
      </div>
      <div className="scroll-x" tabIndex={0} role="region" aria-label="Inputs and outputs">
        <table className="plain">
          <thead>
            <tr>
              <th scope="col">tensor</th>
              <th scope="col">dtype</th>
              <th scope="col">shape</th>
              <th scope="col">kind</th>
            </tr>
          </thead>
          <tbody>
            {signature.inputs.map((spec) => (
              <Row key={`in ${spec.name}`} spec={spec} way="in" kind={kindOf(inputs[spec.name])} />
            ))}
            {signature.outputs.map((spec) => (
              <Row key={`out ${spec.name}`} spec={spec} way="out" kind={labelsOf(detail, spec.name)} />
            ))}
          </tbody>
        </table>
      </div>
      {isOpen && !signature.inputs.length && (
        <p className="panel-body muted">
          {signature.kind === "json" ? "Any JSON object of inputs." : "One body of any bytes."}
        </p>
      )}
      <CopyText text={detail.example} label="A call with curl" />
      <p className="panel-body small muted">
        Takes{" "}
        {detail.content_types.map((type, at) => (
          <span key={type}>
            {at > 0 && ", "}
            <span className="mono">{type}</span>
          </span>
        ))}
      </p>
    </section>
  );
});

function Row({ spec, way, kind }: { spec: TensorSpec; way: "in" | "out"; kind: string }) {
  return (
    <tr>
      <th scope="row" className="sig-name">
        <span className="tag">{way}</span> <span className="mono">{spec.name}</span>
      </th>
      <td className="mono">{spec.dtype}</td>
      <td className="mono">{shown(spec.shape)}</td>
      <td className="muted">{kind}</td>
    </tr>
  );
}

/** "[?, 3]", or "any" for a shape that the model does not declare. */
function shown(shape: number[] | null): string {
  return shape === null ? "any" : `[${shape.map((size) => (size === -1 ? "?" : size)).join(", ")}]`;
}

/** "image 8 × 8 L", "audio 16 kHz", "bytes", "tensor". */
export function kindOf(rule: InputRule | undefined): string {
  const finite = rule?.finite ? ", finite" : "";
  if (rule?.image) {
    const [height, width] = rule.image.size;
    return `image, ${width} × ${height} ${rule.image.mode}${finite}`;
  }
  if (rule?.audio) return `audio, ${rule.audio.rate_hz / 1000} kHz${finite}`;
  if (rule?.bytes?.length) return `bytes, ${rule.bytes.length}`;
  return `${rule?.kind ?? "tensor"}${finite}`;
}

function labelsOf(detail: FunctionDetail, name: string): string {
  const { tensor, labels, top_k } = detail.output;
  const isIt = tensor ? tensor === name : detail.signature.outputs[0]?.name === name;
  if (!isIt || !(labels.length || top_k)) return "";
  return `top ${top_k || 1}${labels.length ? ` of ${labels.length} labels` : ""}`;
}
