//! A CNI plugin that writes down how it was called and hands prevResult on; what to make of it is
//! the tests' business.
//!
//! Keys of its entry change its ways: with `hold` an ADD connects to that socket and waits until
//! the other end has no more to say; with `around` every call is answered by that program, and the
//! socket is told how it ended; with `refuse` an ADD, with `unfit` a STATUS fails with that message.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, error, fs, io, process};

use serde_json::{Map, Value, json};

fn main() -> Result<ExitCode, Box<dyn error::Error>> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let input: Value = serde_json::from_str(&text)?;
    let environment: Map<String, Value> =
        env::vars().map(|(name, value)| (name, Value::from(value))).collect();
    let verb = env::var("CNI_COMMAND")?;
    record(&verb, &input, &environment)?;
    let held = if verb == "ADD" { hold(&input)? } else { None };
    if let Some(program) = input.get("around").and_then(Value::as_str) {
        return Ok(around(program, &text, held)?);
    }
    let answer = match verb.as_str() {
        "ADD" => refusal(&input, "refuse").or_else(|| input.get("prevResult").cloned()),
        "STATUS" => refusal(&input, "unfit"),
        "VERSION" => Some(json!({
            "cniVersion": input.get("cniVersion"),
            "supportedVersions": ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"],
        })),
        _ => None,
    };
    let Some(answer) = answer else {
        return Ok(ExitCode::SUCCESS);
    };
    io::stdout().write_all(answer.to_string().as_bytes())?;
    Ok(if answer.get("code").is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn hold(input: &Value) -> io::Result<Option<UnixStream>> {
    let Some(path) = input.get("hold").and_then(Value::as_str) else {
        return Ok(None);
    };
    let mut socket = UnixStream::connect(path)?;
    socket.read_to_end(&mut Vec::new())?;
    Ok(Some(socket))
}

fn around(program: &str, text: &str, held: Option<UnixStream>) -> io::Result<ExitCode> {
    #[expect(clippy::disallowed_methods, reason = "to stand around a program is to run it")]
    let mut command = Command::new(program);
    let mut inner = command.stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = inner.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    let status = inner.wait()?;
    if let Some(mut socket) = held {
        write!(socket, "{status}")?;
    }
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn refusal(input: &Value, key: &str) -> Option<Value> {
    let message = input.get(key)?;
    Some(json!({ "cniVersion": input.get("cniVersion"), "code": 50, "msg": message }))
}

/// The file appears whole, so that whoever reads while a call is under way sees all of it or none.
fn record(verb: &str, input: &Value, environment: &Map<String, Value>) -> Result<(), Box<dyn error::Error>> {
    let Some(directory) = input.get("calls").and_then(Value::as_str) else {
        return Ok(());
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let name = format!("{directory}/{now:020}-{verb}-{}", process::id());
    fs::write(&name, json!({ "env": environment, "stdin": input }).to_string())?;
    fs::rename(&name, format!("{name}.json"))?;
    Ok(())
}
