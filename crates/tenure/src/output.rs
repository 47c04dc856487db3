//! What commands say on standard output.

use std::fmt::{Arguments, Write as _};
use std::io::{self, Write as _};
use std::process::exit;

/// Writes a line, with the words of [`format!`].
macro_rules! say {
    ($($words:tt)*) => {
        $crate::output::line(format_args!($($words)*))
    };
}
pub(crate) use say;

/// Writes a line. Who reads may go before the end, as `head` does: the command goes on, for it may have more to do than
/// to tell of it. Any other failure ends the program, because a part of a report must not be taken for the whole.
pub(crate) fn line(words: Arguments<'_>) {
    let mut text = String::new();
    let _ = writeln!(text, "{words}");
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "tenure: failed to write to standard output: {error}");
            exit(crate::exit::SYSTEM.into());
        }
        _ => {}
    }
}
