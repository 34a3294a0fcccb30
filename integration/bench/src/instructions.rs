//! Instructions in user space, counted by callgrind. They do not depend on the machine's load.

use crate::pod::{self, CniCall, RUN};
use crate::programs::{built_program, command, system_program};
use crate::report::{Report, Table, cells};
use gybe_integration::failure::Failure;
use std::io::{Write, pipe};
use std::path::Path;

/// Counts once: every run has the same number.
///
/// # Errors
/// When a program fails under callgrind.
pub fn measure() -> Result<Report, Failure> {
    let rows = match system_program("valgrind", "valgrind") {
        Ok(valgrind) => count_all(&valgrind)?,
        Err(missing) => vec![vec![format!("{missing:?}"), "not counted".into()]],
    };
    let table = Table {
        title: "Instructions, by callgrind".into(),
        head: cells(["Program", "instructions in user space"]),
        rows,
    };
    Ok(Report { tables: vec![table], targets: Vec::new() })
}

fn count_all(valgrind: &Path) -> Result<Vec<Vec<String>>, Failure> {
    let call = CniCall::new()?;
    let unmeshed = call.clone().without_annotations();
    let row = |name: &str, program: &str, call: &CniCall| {
        let count = count(valgrind, &built_program(program)?, call)?;
        Ok::<_, Failure>(vec![name.to_owned(), count.to_string()])
    };
    Ok(vec![
        row("no-op", "gybe-noop", &call)?,
        row("gybe-cni ADD", "gybe-cni", &call)?,
        row("gybe-cni ADD of an unmeshed pod", "gybe-cni", &unmeshed)?,
        row("gybe-cni DEL", "gybe-cni", &call.clone().with_command("DEL"))?,
    ])
}

fn count(valgrind: &Path, program: &Path, call: &CniCall) -> Result<u64, Failure> {
    let pods = pod::new_pods(1)?;
    let (reader, mut writer) = pipe()?;
    writer.write_all(call.stdin().as_bytes())?;
    drop(writer);
    let mut valgrind = command(valgrind);
    let out = format!("--callgrind-out-file={RUN}/callgrind");
    valgrind.args(["--tool=callgrind", &out, "--"]).arg(program);
    let env = pods.iter().flat_map(|pod| call.env(pod));
    let output = valgrind.env_clear().envs(env).stdin(reader).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(Failure::new(format!("{program:?} under callgrind: {}: {stderr}", output.status)));
    }
    // `==123== Collected : 456789`
    let collected = stderr.lines().find_map(|line| line.split_once("Collected :"));
    let count = collected.and_then(|(_, count)| count.trim().parse().ok());
    count.ok_or_else(|| Failure::new(format!("callgrind counted nothing: {stderr}")))
}
