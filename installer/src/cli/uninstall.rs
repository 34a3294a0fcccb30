//! `gybe uninstall`: out of this node's chain, and the programs away once nothing can ask for them.

use super::answer::{Answer, Exit, Failure};
use super::directories::DirectoriesArg;
use super::install::image;
use super::passed;
use crate::host::by_hand::{self, Elsewhere, Out, Stays};
use crate::host::doctor::sight::{AgentSeen, ask_agent};
use crate::host::install::seen::{FileName, Places};
use crate::host::install::wanted::{Leave, PutBack};
use crate::host::settings::FACTS_SOCKET;
use clap::Args;
use gybe_plugin::probe_cache::DIRECTORY;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Take gybe out of this node: first out of every conf file, each byte of the others' as it was; then,
/// when nothing can ask for them any more, the programs.
///
/// The plugin stays, answering DEL, as long as a living sandbox may ask for it, and for five minutes
/// after a change of the conf directory in any case; gybe stays with it. Called again it goes on, until it says that it is
/// finished. Refused while the node agent answers and is not in mode: leave, because it would put its entry back within a
/// second. Exit code 0: no conf file names gybe-cni. 1: something stands in the way. 2: refused, or it could not be done.
#[derive(Debug, Args)]
pub(super) struct UninstallArgs {
    #[command(flatten)]
    directories: DirectoriesArg,
    /// A conf file with a name of its own, as it was given to install [default: it is looked for]
    #[arg(long, value_name = "NAME")]
    conf_name: Option<String>,
    /// Put back an istio-cni entry whose place gybe took, if its program is still there
    #[arg(long)]
    put_back_istio: bool,
    /// Where sockets and findings are kept
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    run_dir: PathBuf,
    /// Uninstall although the node agent answers, which then puts its entry back unless it is set to mode: leave
    #[arg(long)]
    force: bool,
    /// Say what would be done, and what stands in the way (exit code 1)
    #[arg(long)]
    dry_run: bool,
}

impl UninstallArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let places = self.directories.places();
        let leave = self.leave(&places)?;
        let (root, mut notes) = (self.directories.root(), Vec::new());
        let agent = ask_agent(&self.run_dir.join(FACTS_SOCKET));
        if agent.is_running() && !agent.leaves() {
            if !self.dry_run && !self.force {
                return Err(refused(&agent));
            }
            notes.push(format!(
                "note: {}, and puts its entry back within a second: {BEFORE}",
                answers(&agent)
            ));
        }
        if self.dry_run {
            notes.extend(Elsewhere::than(&places, root).note());
            return Ok(passed::foreseen(&Out::foreseen(&places, &leave)).noting(notes));
        }
        let out = Out::now(&places, &leave, root).map_err(|why| Failure::hinted("cannot uninstall", why))?;
        let kept = match out.is_out() {
            true => by_hand::forget_run_directory(&self.run_dir, out.is_finished()),
            false => Vec::new(),
        };
        let kept = kept.iter().map(|(path, why)| format!("note: {} stays: {why}", path.display()));
        let kept = kept.chain(out.elsewhere.note());
        let exit = if out.is_out() { Exit::Yes } else { Exit::No };
        let json = as_json(&out);
        Ok(Answer { text: text(&out), json, exit, notes: notes.into_iter().chain(kept).collect() })
    }

    fn leave(&self, places: &Places) -> Result<Leave, Failure> {
        let pinned = self.conf_name.as_ref().map(|name| FileName::new(name.as_str())).transpose();
        let pinned = pinned.map_err(|why| Failure::because("cannot use --conf-name", why))?;
        let put_back = if self.put_back_istio { PutBack::Istio } else { PutBack::Nothing };
        // Where no program is, none has to stay.
        Ok(by_hand::leave(places, || image(None).ok(), pinned, put_back))
    }
}

/// What an operator does before `gybe uninstall`.
const BEFORE: &str = "set mode: leave in the ConfigMap gybe-config, or delete the DaemonSet gybe-node";

fn answers(agent: &AgentSeen) -> String {
    format!("the node agent answers at {}", agent.socket.display())
}

fn refused(agent: &AgentSeen) -> Failure {
    let what = format!("cannot uninstall: {}, and would put its entry back within a second", answers(agent));
    Failure::new(what)
        .hinting(Some(format!("{BEFORE}; if that is done and the agent still runs: gybe uninstall --force")))
}

fn text(out: &Out) -> String {
    let passes: String =
        out.passes.iter().map(|pass| passed::passed(pass).0).filter(|text| text != NOTHING).collect();
    let stays = out.stays.iter().map(|Stays { program, until }| format!("{program} stays {until}\n"));
    let end = match (out.is_finished(), out.is_out()) {
        (true, _) => "finished: nothing of gybe is left\n",
        (false, true) if out.stays.is_empty() => "not finished: something of gybe is in other directories\n",
        (false, true) => "no conf file names gybe-cni; to finish, run gybe uninstall again then\n",
        (false, false) => "not out: a conf file still names gybe-cni\n",
    };
    passes + &stays.collect::<String>() + end
}

const NOTHING: &str = "nothing to do\n";

fn as_json(out: &Out) -> Value {
    let stays = out.stays.iter().map(
        |Stays { program, until }| json!({ "program": program.to_string(), "until": until.to_string() }),
    );
    json!({
        "out": out.is_out(),
        "finished": out.is_finished(),
        "elsewhere": { "conf": out.elsewhere.conf, "programs": out.elsewhere.programs },
        "stays": stays.collect::<Vec<_>>(),
        "passes": out.passes.iter().map(|pass| passed::passed(pass).1).collect::<Vec<_>>(),
    })
}
