//! One call of the plugin, from its environment and stdin to its reply, with the short verbs DEL, GC and
//! STATUS. ADD and CHECK are in `add` and `check`, the result of VERSION is in `version`.

use crate::backend::{SelectError, Selection};
use crate::bounded_read::{self, STDIN_TIMEOUT};
use crate::conf::{self, PluginConf};
use crate::error::PluginError;
use crate::log::{self, CALL, CallContext};
use crate::reply::{Reply, command};
use crate::request::{CniVariables, Request, Verb};
use crate::{add, check, version};
use serde_json::Value;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Performs a runtime's call, and returns its reply.
pub fn handle(env: &CniVariables, stdin: BorrowedFd<'_>) -> Reply {
    let started = Instant::now();
    let Some(name) = env.text("CNI_COMMAND") else { return Reply::About };
    let verb = Verb::parse(&name);
    let context = CallContext { verb: verb.map_or("", Verb::as_str), started };
    // A runtime calls VERSION to learn what it may write to stdin, so stdin is not read for it.
    if verb == Some(Verb::Version) {
        return Reply::Json(version::result());
    }
    match Request::parse(&name, env, || Ok(bounded_read::stdin(stdin, STDIN_TIMEOUT)?)) {
        Ok(request) => {
            // The process ends with its reply, and freeing the configuration takes half as long as
            // parsing it.
            let mut request = ManuallyDrop::new(request);
            perform(&mut request, context).unwrap_or_else(|error| fail(context, Some(&request), &error))
        }
        Err(error) => fail(context, None, &error),
    }
}

fn perform(request: &mut Request, context: CallContext) -> Result<Reply, PluginError> {
    let (level, log_socket) = conf::logging(request.network.members());
    log::start(level, log_socket, context);
    version::check(request.verb, request.network.version())?;
    let reply = match request.verb {
        // ADD logs its decision itself.
        Verb::Add => return add::add(request),
        Verb::Check => check::check(request)?,
        Verb::Del => del(),
        Verb::Gc => gc(request)?,
        Verb::Status => status(request)?,
        Verb::Version => Reply::Json(version::result()),
    };
    tracing::debug!(target: CALL, decision = "nothing", "gybe-cni {}", command(request.verb));
    Ok(reply)
}

/// DEL: nothing to do, because the rules live in the pod's namespace and are deleted with it.
///
/// Runtimes send DEL two to five times, without a namespace, without prevResult, for pods that were never
/// added; a DEL that fails keeps a pod Terminating for ever (docs/RULES.md, section 6). So none of the
/// plugin's keys can make it fail. A call that violates the protocol fails: a missing variable, a
/// configuration that is not JSON or has no name, a malformed version (001 to 008).
fn del() -> Reply {
    Reply::Empty
}

/// GC: nothing to do, because nothing is kept outside the pods' namespaces.
///
/// # Errors
/// When the list of valid attachments is malformed: a plugin that deletes by it would do harm.
fn gc(request: &Request) -> Result<Reply, PluginError> {
    // A runtime sends an empty list as null (docs/RULES.md, section 6).
    let is_valid = match request.network.member("cni.dev/valid-attachments") {
        None => true,
        Some(list) => list.as_array().is_some_and(|list| list.iter().all(is_attachment)),
    };
    if is_valid { Ok(Reply::Empty) } else { Err(PluginError::Attachments) }
}

fn is_attachment(item: &Value) -> bool {
    let is_text = |key| item.get(key).is_none_or(|value| value.is_string() || value.is_null());
    (item.is_object() && is_text("containerID") && is_text("ifname")) || item.is_null()
}

/// STATUS: reports whether ADD would work on this node.
///
/// It judges the node, never the agent: a failing STATUS keeps every pod from starting, and so the agent
/// itself. So it does not look for the sources of facts (socket, kubeconfig, directory). The code is CNI's
/// 50; 51 is for plugins whose absence cuts off running pods, and Gybe's rules stay.
///
/// It reads what ADD would read first, and the probe findings on the backend that ADD would use. A runtime
/// calls it every 5 s; with findings in the cache it reads two small files. ADD uses a configured backend
/// without probing it; STATUS requires findings that it works, because a node on which it does not refuses
/// every pod of the mesh.
fn status(request: &Request) -> Result<Reply, PluginError> {
    let conf = PluginConf::read(request.network.members())?;
    match Selection::of(&conf).verified() {
        Ok(_) => Ok(Reply::Empty),
        // The probe could not run, or runs in another process: nothing is known against the node.
        Err(SelectError::Probe(error)) => {
            tracing::warn!(%error, "gybe-cni cmdStatus: the node was not judged");
            Ok(Reply::Empty)
        }
        Err(error) => Err(error.into()),
    }
}

/// Logs the error and returns the reply for it.
fn fail(context: CallContext, request: Option<&Request>, error: &PluginError) -> Reply {
    log::start(conf::LogLevel::Info, None, context);
    let verb = Verb::parse(context.verb);
    let reply = Reply::error(verb, request.map(|request| request.network.version()), error);
    if let Reply::Error(reply) = &reply {
        let args = log::shorten(request.map_or("", |request| &request.args));
        let cause = log::shorten(&error.chain());
        let (id, code, hint) = (&reply.id, reply.code, &reply.details);
        let verb = verb.map_or("", command);
        tracing::error!(target: CALL, decision = "error", id, code, cause, hint, args, "gybe-cni {verb} error");
    }
    reply
}
