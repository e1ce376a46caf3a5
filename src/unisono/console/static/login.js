// Exchanges the admin token for a session cookie. A token in the fragment is used at once and removed from the address.

const form = document.getElementById("form");
const field = document.getElementById("token");
const problem = document.getElementById("problem");

async function login(token) {
  problem.textContent = "";
  try {
    const answer = await fetch("/api/login", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Unisono-Console": "1" },
      body: JSON.stringify({ token }),
    });
    if (answer.ok) {
      location.reload();
      return;
    }
    const { error } = await answer.json();
    problem.textContent = error;
  } catch {
    problem.textContent = "The server does not answer.";
  }
  field.focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  login(field.value);
});

function fromFragment() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return false;
  history.replaceState(null, "", "/");
  login(given);
  return true;
}

addEventListener("hashchange", fromFragment);
if (!fromFragment()) field.focus();
