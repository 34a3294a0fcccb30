//! One call from its beginning to its answer: which verb runs, and what is logged when it fails.

use crate::conf;
use crate::error::PluginError;
use crate::log::{CALL, Called};
use crate::reply::{Reply, command};
use crate::request::{Environment, Request, Verb};
use crate::{add, check, del, gc, log, status, stdin, version};
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Answers a runtime's call.
pub fn answer(env: &Environment, stdin: BorrowedFd<'_>) -> Reply {
    let began = Instant::now();
    let Some(name) = env.text("CNI_COMMAND") else { return Reply::About };
    let verb = Verb::parse(&name);
    let called = Called { verb: verb.map_or("", Verb::as_str), began };
    // VERSION is asked to learn what may be written to stdin, so stdin is not read for it.
    if verb == Some(Verb::Version) {
        return Reply::Answer(version::answer());
    }
    match Request::parse(&name, env, || Ok(stdin::read(stdin, stdin::DEADLINE)?)) {
        Ok(request) => {
            // The process ends with its answer: to free the entry piece by piece takes half as long as
            // to read it did.
            let mut request = ManuallyDrop::new(request);
            perform(&mut request, called).unwrap_or_else(|fault| fail(called, Some(&request), &fault))
        }
        Err(fault) => fail(called, None, &fault),
    }
}

fn perform(request: &mut Request, called: Called) -> Result<Reply, PluginError> {
    let (level, agent) = conf::logging(request.network.members());
    log::start(level, agent, called);
    version::gate(request.verb, request.network.version())?;
    let reply = match request.verb {
        // It says itself what it decided.
        Verb::Add => return add::add(request),
        Verb::Check => check::check(request)?,
        Verb::Del => del::del(request),
        Verb::Gc => gc::gc(request)?,
        Verb::Status => status::status(request)?,
        Verb::Version => Reply::Answer(version::answer()),
    };
    tracing::debug!(target: CALL, decision = "nothing", "gybe-cni {}", command(request.verb));
    Ok(reply)
}

fn fail(called: Called, request: Option<&Request>, fault: &PluginError) -> Reply {
    log::start(conf::LogLevel::Info, None, called);
    let verb = Verb::parse(called.verb);
    let reply = Reply::failure(verb, request.map(|request| request.network.version()), fault);
    if let Reply::Failure(failure) = &reply {
        let args = log::brief(request.map_or("", |request| &request.args));
        let cause = log::brief(&fault.chain());
        let (id, code, hint) = (&failure.id, failure.code, &failure.details);
        let verb = verb.map_or("", command);
        tracing::error!(target: CALL, decision = "error", id, code, cause, hint, args, "gybe-cni {verb} error");
    }
    reply
}
