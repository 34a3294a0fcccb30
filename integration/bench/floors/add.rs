//! The least that an ADD can cost: the same calls as `gybe-cni`, without std, C library, JSON and a decision. The
//! messages are recorded: the batch of the default policy is `$GYBE_FLOOR_BATCH`, which `gybe-bench --write-batch` writes.
//!
//! Reads stdin to its end, opens `$CNI_NETNS`, queries the agent at `$FLOOR_AGENT`, if set, with `$FLOOR_QUERY`, enters the
//! namespace, lists addresses, adds `::6`, sends the batch, and writes a log line and a reply. Its exit code is the
//! number of the call that failed.

#![no_std]
#![no_main]
// Keeps the loops of `memory` from becoming calls of themselves.
#![no_builtins]

use core::arch::{asm, global_asm};

static BATCH: &[u8] = include_bytes!(env!("GYBE_FLOOR_BATCH"));

#[cfg(target_arch = "x86_64")]
mod number {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const SOCKET: usize = 41;
    pub const CONNECT: usize = 42;
    pub const SENDTO: usize = 44;
    pub const RECVFROM: usize = 45;
    pub const EXIT_GROUP: usize = 231;
    pub const OPENAT: usize = 257;
    pub const SETNS: usize = 308;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub const OPENAT: usize = 56;
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const EXIT_GROUP: usize = 94;
    pub const SOCKET: usize = 198;
    pub const CONNECT: usize = 203;
    pub const SENDTO: usize = 206;
    pub const RECVFROM: usize = 207;
    pub const SETNS: usize = 268;
}
use number::*;

#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "mov rdi, rsp", "and rsp, -16", "call {add}", add = sym add);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x0, sp", "bl {add}", add = sym add);

/// One system call; the kernel's result.
fn call(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the callers pass lengths of buffers that live until the call has returned.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
             in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d, in("x4") e,
             in("x5") f, options(nostack));
    }
    result
}

/// What the compiler calls of a C library.
mod memory {
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
        // SAFETY: the caller passes buffers of this length.
        (0..length).for_each(|index| unsafe { *to.add(index) = *from.add(index) });
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
        // SAFETY: as above.
        (0..length).for_each(|index| unsafe { *to.add(index) = byte as u8 });
        to
    }

    /// Only reports whether they are equal: nothing here orders bytes.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
        // SAFETY: as above.
        i32::from((0..length).any(|index| unsafe { *one.add(index) != *other.add(index) }))
    }
}

fn exit(code: usize) -> ! {
    loop {
        call(EXIT_GROUP, [code, 0, 0, 0, 0, 0]);
    }
}

/// The result, or the end of the program with this exit code.
fn checked(code: usize, result: isize) -> usize {
    if result < 0 { exit(code) } else { result as usize }
}

fn socket(code: usize, family: usize, kind: usize, protocol: usize) -> usize {
    const CLOSE_ON_EXEC: usize = 0o2000000;
    checked(code, call(SOCKET, [family, kind | CLOSE_ON_EXEC, protocol, 0, 0, 0]))
}

fn send(code: usize, socket: usize, message: &[u8]) {
    checked(code, call(SENDTO, [socket, message.as_ptr() as usize, message.len(), 0, 0, 0]));
}

fn write(code: usize, to: usize, text: &[u8]) {
    checked(code, call(WRITE, [to, text.as_ptr() as usize, text.len(), 0, 0, 0]));
}

/// Fills the buffer with the next bytes or message.
fn receive<'b>(code: usize, number: usize, from: usize, buffer: &'b mut [u8]) -> &'b [u8] {
    let length = checked(code, call(number, [from, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]));
    buffer.get(..length).unwrap_or_default()
}

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Reports whether a message of this type is among those of a datagram; an error other than 0 ends the program.
fn has(code: usize, kind: u16, mut datagram: &[u8]) -> bool {
    while let [a, b, c, d, e, f, ..] = *datagram {
        let found = u16::from_ne_bytes([e, f]);
        if found == NLMSG_ERROR && datagram.get(16..20) != Some(&[0; 4]) {
            exit(code);
        }
        if found == kind {
            return true;
        }
        let length = u32::from_ne_bytes([a, b, c, d]).next_multiple_of(4) as usize;
        datagram = datagram.get(length.max(16)..).unwrap_or_default();
    }
    false
}

/// `RTM_GETADDR`, a dump of all families.
const LIST: [u8; 24] = *b"\x18\0\0\0\x16\0\x01\x03\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// `RTM_NEWADDR`: `::6/128` on `lo`, without duplicate address detection, acknowledged; fails if it is there.
const ADDRESS: [u8; 64] = *b"\x40\0\0\0\x14\0\x05\x06\x02\0\0\0\0\0\0\0\x0a\x80\x02\0\x01\0\0\0\
\x14\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x06\x14\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x06";
/// As long as those of the plugin.
const LOG_LINE: [u8; 219] = [b'\n'; 219];
const REPLY: [u8; 426] = [b' '; 426];

/// The value of a variable, with its end.
fn variable<'e>(mut environment: impl Iterator<Item = &'e [u8]>, name: &[u8]) -> Option<&'e [u8]> {
    environment.find_map(|set| set.strip_prefix(name))
}

/// `stack` is what the kernel puts on the stack of a new program: the number of its arguments, the arguments, a null, the
/// environment, a null.
extern "C" fn add(stack: *const usize) -> ! {
    // SAFETY: as above; each variable ends with a zero byte.
    let environment = unsafe {
        let first = stack.add(*stack + 2);
        (0..).map(move |index| *first.add(index)).take_while(|variable| *variable != 0).map(|start| {
            let start = start as *const u8;
            let length = (0..).take_while(|index| *start.add(*index) != 0).count();
            core::slice::from_raw_parts(start, length + 1)
        })
    };
    let mut buffer = [0; 8192];
    while !receive(1, READ, 0, &mut buffer).is_empty() {}
    let Some(netns) = variable(environment.clone(), b"CNI_NETNS=") else { exit(2) };
    let agent = variable(environment.clone(), b"FLOOR_AGENT=");
    let agent = agent.zip(variable(environment.clone(), b"FLOOR_QUERY=")).map(|(path, query)| {
        let mut address = [0; 110];
        address[0] = 1;
        address[2..2 + path.len()].copy_from_slice(path);
        let agent = socket(3, 1, 1, 0);
        checked(4, call(CONNECT, [agent, address.as_ptr() as usize, 2 + path.len(), 0, 0, 0]));
        send(5, agent, &query[..query.len() - 1]);
        agent
    });
    const CLOSE_ON_EXEC: usize = 0o2000000;
    let netns =
        checked(6, call(OPENAT, [-100_isize as usize, netns.as_ptr() as usize, CLOSE_ON_EXEC, 0, 0, 0]));
    if let Some(agent) = agent {
        while !receive(7, RECVFROM, agent, &mut buffer).ends_with(b"\n") {}
    }
    checked(8, call(SETNS, [netns, 0x4000_0000, 0, 0, 0, 0]));
    let routes = socket(9, 16, 3, 0);
    send(10, routes, &LIST);
    while !has(11, NLMSG_DONE, receive(11, RECVFROM, routes, &mut buffer)) {}
    send(12, routes, &ADDRESS);
    has(13, NLMSG_ERROR, receive(13, RECVFROM, routes, &mut buffer));
    let nftables = socket(14, 16, 3, 12);
    send(15, nftables, BATCH);
    has(16, NLMSG_ERROR, receive(16, RECVFROM, nftables, &mut buffer));
    write(17, 2, &LOG_LINE);
    write(18, 1, &REPLY);
    exit(0)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(99)
}
