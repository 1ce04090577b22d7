// A run on a page, from its request to its last token. Pages extend it with `end(run)` and `showState(state)`.
import { follow } from "./stream.js";
import { TokenStream } from "./tokens.js";
import { figuresOf } from "./trace.js";

class LiveRun {
  constructor(view, onSelect, changed) {
    this.run = view;
    this.changed = changed;
    this.stream = new TokenStream(onSelect);
  }

  // Resolves when the run has ended.
  follow() {
    return new Promise((done) => {
      const end = (run) => { this.end(run); this.changed(); done(); };
      this.stop = follow(this.run.id, {
        step: (record) => {
          this.stream.append(record);
          if (this.stream.records.length === 1) this.showState(this.run.state);
          this.changed();
        },
        state: (state) => { this.showState(state); this.changed(); },
        fail: (sentence) => end({ ...this.run, state: "FAILED", ended: true, error: sentence }),
        end,
      });
    });
  }

  get now() { return figuresOf(this.run, this.stream.records); }
}

export { LiveRun };
