// How a connection begins: the kernel proves that it knows a key of this browser, then this page does. See proof.py.

/** @typedef {{use: string, id: string, salt: string, key: CryptoKey}} Key */
/** @typedef {{use: string, id: string, salt: string, key: string}} SentKey */

const PROOF_MS = 20_000; // in which the kernel has to prove itself
const STORE_MS = 5_000; // in which the browser opens what it keeps: Safari's IndexedDB is known to hang
const encoder = new TextEncoder();

/** The key of the link that opened this page: it leaves the address at once. @type {SentKey|null} */
let fromLink = takeLink();
let isLinkUsed = false;
/** This page's own: no other page of the origin can read it. @type {Key|null} */
let own = null;

/** @returns {SentKey|null} */
function takeLink() {
  const id = new URLSearchParams(location.search).get("link");
  const key = location.hash.slice(1);
  if (!id || !key) return null;
  history.replaceState(null, "", location.pathname);
  return { use: "link", id, salt: "", key };
}

/** The beginning of one connection. Until `done` nothing else may be sent, or be believed that came. */
export class Entry {
  /** The kernel has proven itself. */
  proven = false;
  /** This page has, too. */
  done = false;
  /** Another program is at this address, or the kernel has forgotten this page. */
  #isStrange = false;
  #lacksKey = false;
  /** @type {Key|null} */
  #key = null;
  #nonce = hex(crypto.getRandomValues(new Uint8Array(16)));
  /** @type {WebSocket} */
  #socket;

  /** @param {WebSocket} socket */
  constructor(socket) {
    this.#socket = socket;
    setTimeout(() => this.done || this.#leave(), PROOF_MS);
  }

  /** What the page names is no secret. Without any key it sends nothing. */
  async begin() {
    this.#key = own ?? (fromLink ? await importKey(fromLink) : await readKey().catch(report));
    if (!this.#key) {
      this.#lacksKey = true;
      return this.#leave();
    }
    const { use, id, salt } = this.#key;
    this.#send({ use, id, salt, nonce: this.#nonce });
  }

  /** A message of the server's. @param {unknown} data */
  async take(data) {
    const message = JSON.parse(String(data));
    if (!this.proven) return this.#challenge(String(message.nonce), String(message.proof));
    for (const sent of /** @type {SentKey[]} */ (message.keys)) {
      const key = await importKey(sent);
      if (sent.use === "tab") own = key;
      else await keepKey(key).catch(report); // then a reload logs out
    }
    fromLink = null;
    this.done = true;
  }

  /** @param {string} nonce @param {string} proof */
  async #challenge(nonce, proof) {
    const key = /** @type {Key} */ (this.#key);
    const signature = Uint8Array.from(proof.match(/../g) ?? [], (byte) => parseInt(byte, 16));
    this.proven = await crypto.subtle.verify("HMAC", key.key, signature, this.#lines("kernel", nonce));
    if (!this.proven) {
      this.#isStrange = true;
      return this.#leave();
    }
    this.#send({ proof: hex(new Uint8Array(await crypto.subtle.sign("HMAC", key.key, this.#lines("page", nonce)))) });
  }

  /** Have the connection end now: a stranger may never answer that it is closed. */
  #leave() {
    if (this.#socket.readyState > WebSocket.OPEN) return;
    const { onclose } = this.#socket;
    this.#socket.onclose = this.#socket.onmessage = null;
    this.#socket.close();
    onclose?.call(this.#socket, new CloseEvent("close"));
  }

  /** What is signed. @param {string} signer @param {string} nonce */
  #lines(signer, nonce) {
    const { use, id, salt } = /** @type {Key} */ (this.#key);
    return encoder.encode(["agentos dashboard", signer, use, id, salt, this.#nonce, nonce].join("\n"));
  }

  /** @param {object} message */
  #send(message) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  /** Why this page isn't let in; "" if that isn't so. Another try may help where `again` is true.
   * @param {number} code of the connection's end @returns {{why: string, again: boolean}} */
  explain(code) {
    if (this.done && code === 4401) return { why: "This browser is logged out.", again: false };
    if (code !== 4401 && !this.#isStrange && !this.#lacksKey) return { why: "", again: true };
    if (own) return { why: "What answers at this address doesn't prove that it is the kernel of this page: nothing is sent to it.", again: true };
    const again = fromLink !== null; // that was used already, but this browser may have a session
    isLinkUsed ||= again;
    fromLink = null;
    return { why: isLinkUsed ? "This link was used already, is older than 10 minutes, or is for another run of the kernel." : "This browser isn't logged in here.", again };
  }
}

/** @param {Uint8Array} bytes */
function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** No script can read the key again. @param {SentKey} sent @returns {Promise<Key>} */
async function importKey(sent) {
  const key = await crypto.subtle.importKey("raw", encoder.encode(sent.key), { name: "HMAC", hash: "SHA-256" }, false, ["sign", "verify"]);
  return { use: sent.use, id: sent.id, salt: sent.salt, key };
}

/** @param {unknown} error */
function report(error) {
  reportError(error);
  return null;
}

/** The key that this origin keeps. @returns {Promise<Key|null>} */
async function readKey() {
  return (await inStore("readonly", (store) => store.get("run"))) ?? null;
}

/** @param {Key} key */
async function keepKey(key) {
  await inStore("readwrite", (store) => store.put(key, "run"));
}

/** @param {IDBTransactionMode} mode @param {(store: IDBObjectStore) => IDBRequest} work @returns {Promise<any>} */
function inStore(mode, work) {
  return new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`IndexedDB doesn't open within ${STORE_MS / 1000} s`)), STORE_MS);
    const opening = indexedDB.open("agentos", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("keys");
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const transaction = opening.result.transaction("keys", mode);
      const request = work(transaction.objectStore("keys"));
      transaction.oncomplete = () => resolve(request.result); // a request that succeeded may still be lost: a full disk
      transaction.onabort = () => reject(transaction.error);
      opening.result.close();
    };
  });
}
