//! A CNI plugin that records its calls and returns prevResult.
//!
//! Keys of its entry:
//! - `calls`: the directory of the recorded calls.
//! - `pause_at`: before an ADD continues, it connects to this socket and reads it to the end.
//! - `delegate`: this program answers every call; after an ADD its exit status is written to the socket.
//! - `fail_add`, `fail_status`: an ADD or a STATUS fails with this message.

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
    let command = env::var("CNI_COMMAND")?;
    record(&command, &input, &environment)?;
    let paused = if command == "ADD" { pause(&input)? } else { None };
    if let Some(program) = input.get("delegate").and_then(Value::as_str) {
        return Ok(delegate(program, &text, paused)?);
    }
    let output = match command.as_str() {
        "ADD" => error(&input, "fail_add").or_else(|| input.get("prevResult").cloned()),
        "STATUS" => error(&input, "fail_status"),
        "VERSION" => Some(json!({
            "cniVersion": input.get("cniVersion"),
            "supportedVersions": ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"],
        })),
        _ => None,
    };
    let Some(output) = output else {
        return Ok(ExitCode::SUCCESS);
    };
    io::stdout().write_all(output.to_string().as_bytes())?;
    Ok(if output.get("code").is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn pause(input: &Value) -> io::Result<Option<UnixStream>> {
    let Some(path) = input.get("pause_at").and_then(Value::as_str) else {
        return Ok(None);
    };
    let mut socket = UnixStream::connect(path)?;
    socket.read_to_end(&mut Vec::new())?;
    Ok(Some(socket))
}

fn delegate(program: &str, text: &str, paused: Option<UnixStream>) -> io::Result<ExitCode> {
    #[expect(clippy::disallowed_methods, reason = "the recorder runs the plugin that it records")]
    let mut command = Command::new(program);
    let mut plugin = command.stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = plugin.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    let status = plugin.wait()?;
    if let Some(mut socket) = paused {
        write!(socket, "{status}")?;
    }
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn error(input: &Value, key: &str) -> Option<Value> {
    let message = input.get(key)?;
    Some(json!({ "cniVersion": input.get("cniVersion"), "code": 50, "msg": message }))
}

/// Writes the call to a file by rename, so that a concurrent reader sees the whole file or none.
fn record(
    command: &str,
    input: &Value,
    environment: &Map<String, Value>,
) -> Result<(), Box<dyn error::Error>> {
    let Some(directory) = input.get("calls").and_then(Value::as_str) else {
        return Ok(());
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let name = format!("{directory}/{now:020}-{command}-{}", process::id());
    fs::write(&name, json!({ "env": environment, "stdin": input }).to_string())?;
    fs::rename(&name, format!("{name}.json"))?;
    Ok(())
}
