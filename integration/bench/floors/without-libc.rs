//! A program that does nothing, without std and C library: the cost of a process to the kernel.

#![no_std]
#![no_main]

use core::arch::asm;

/// The first instruction of the program: exit_group(0).
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    // SAFETY: the system call takes a number and does not return.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("syscall", in("rax") 231, in("rdi") 0, options(noreturn, nostack))
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("svc 0", in("x8") 94, in("x0") 0, options(noreturn, nostack))
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
