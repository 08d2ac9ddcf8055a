// Browsers refuse a worker to a page that is read from the file system. There this runs the worker's script in a hidden frame of the page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = []; // messages until the script is there
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = new URL(url, location.href);
      script.onload = () => {
        for (const data of this.waiting) this.send(data);
        this.waiting = null;
      };
      script.onerror = () => this.dispatchEvent(new ErrorEvent("error", { message: `${script.src} cannot be read` }));
      frame.contentDocument.body.append(script);
    }

    send(data) {
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.send(data);
    }
  };
}
