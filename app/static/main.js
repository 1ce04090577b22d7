// What every page loads: the frame, what keeps it fresh, and the two pages that draw answers themselves.
import "./shell.js";
import "./changes.js";
import "./chat.js";
import "./compare.js";
