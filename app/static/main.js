// What every page loads: the frame, what keeps it fresh, and the pages that need a script of their own.
import "./shell.js";
import "./changes.js";
import "./keep.js";
import "./history.js";
import "./chat.js";
import "./compare.js";
import "./charts.js";
