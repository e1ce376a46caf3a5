// Requests to the server. A session that has ended leads back to the login page.

export class Refused extends Error {}

async function request(path, options) {
  const answer = await fetch(`/api/${path}`, {
    ...options,
    headers: { "X-Unisono-Console": "1", ...(options?.headers ?? {}) },
  });
  if (answer.status === 401) {
    location.reload();
    throw new Refused("the session has ended");
  }
  const body = await answer.json();
  if (!answer.ok) throw new Refused(body.error ?? `status ${answer.status}`);
  return body;
}

export function get(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  return request(query.size ? `${path}?${query}` : path, { signal });
}

export function post(path, body) {
  return request(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
}
