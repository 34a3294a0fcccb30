//! Instructions of the program itself, counted by callgrind: they do not depend on the machine's
//! mood. What the kernel does for it is not in them.

use crate::pod::{self, Call};
use crate::programs::{command, ours, theirs};
use crate::report::{Report, Table, cells};
use crate::seclusion::PLACE;
use gybe_integration::failure::Failure;
use std::io::{Write, pipe};
use std::path::Path;

/// Counts once: it is the same number every time.
///
/// # Errors
/// When a program fails under callgrind.
pub fn measure() -> Result<Report, Failure> {
    let rows = match theirs("valgrind", "valgrind") {
        Ok(valgrind) => counted(&valgrind)?,
        Err(missing) => vec![vec![format!("{missing:?}"), "not counted".into()]],
    };
    let table = Table {
        title: "Instructions, by callgrind".into(),
        head: cells(["Program", "instructions in user space"]),
        rows,
    };
    Ok(Report { tables: vec![table], targets: Vec::new() })
}

fn counted(valgrind: &Path) -> Result<Vec<Vec<String>>, Failure> {
    let call = Call::prepared()?;
    let unmeshed = call.clone().unannotated();
    let count = |(program, shown, call): (&str, &str, &Call)| {
        Ok(vec![shown.to_owned(), count(valgrind, &ours(program)?, call)?.to_string()])
    };
    [
        ("gybe-noop", "no-op", &call),
        ("gybe-cni", "gybe-cni ADD", &call),
        ("gybe-cni", "gybe-cni ADD of an unmeshed pod", &unmeshed),
        ("gybe-cni", "gybe-cni DEL", &call.clone().of("DEL")),
    ]
    .map(count)
    .into_iter()
    .collect()
}

fn count(valgrind: &Path, program: &Path, call: &Call) -> Result<u64, Failure> {
    let pods = pod::fresh(1)?;
    let (reader, mut writer) = pipe()?;
    writer.write_all(call.stdin().as_bytes())?;
    drop(writer);
    let mut valgrind = command(valgrind);
    let out = format!("--callgrind-out-file={PLACE}/callgrind");
    valgrind.args(["--tool=callgrind", &out, "--"]).arg(program);
    let env = pods.iter().flat_map(|pod| call.env(pod));
    let ran = valgrind.env_clear().envs(env).stdin(reader).output()?;
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    if !ran.status.success() {
        return Err(Failure::new(format!("{program:?} under callgrind: {}: {said}", ran.status)));
    }
    // `==123== Collected : 456789`
    let collected = said.lines().find_map(|line| line.split_once("Collected :"));
    let count = collected.and_then(|(_, count)| count.trim().parse().ok());
    count.ok_or_else(|| Failure::new(format!("callgrind counted nothing: {said}")))
}
