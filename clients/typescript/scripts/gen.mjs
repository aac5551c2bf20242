// Copies the generated code of the contract into the package, which can't reach outside its own folder.
import { cp, rm } from "node:fs/promises";

const here = new URL("..", import.meta.url);
const target = new URL("dist/gen/", here);
await rm(target, { recursive: true, force: true });
await cp(new URL("../../gen/typescript/", here), target, { recursive: true });
