//! One process or several: the tests that both have in common.
//!
//! A test that is a function of a [`Mode`] stands behind `in_both_modes!`, which makes two tests of it. A plain test about
//! single mode says why it is about that alone.

use testing::proc;
use testing::process::{Launch, Server, wait_until};

/// How many processes a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One.
    Single,
    /// A supervisor, two owners and two frontends. Its ids are shown as dense ones.
    Multi,
}

impl Mode {
    /// How to start the executable of this build as `tenure tubes`.
    pub(crate) fn tubes(self) -> Launch {
        match self {
            Mode::Single => super::tubes(),
            Mode::Multi => super::tubes().with(["--owners", "2", "--frontends", "2"]).with_dense_ids(),
        }
    }

    /// A running server without a log.
    #[track_caller]
    pub(crate) fn server(self) -> Server {
        self.tubes().start()
    }

    /// Waits until every link has reached both its ends, for who counts descriptors: the server serves as soon as one
    /// frontend has its links, while others, and the owners at their ends, may still have theirs before them. To be called
    /// before any client is there.
    #[track_caller]
    pub(crate) fn wait_until_linked(self, server: &Server) {
        /// Each owner has a control channel and two links, each frontend a listener besides.
        const SOCKETS: usize = 2 * 3 + 2 * 4;
        let sockets = || server.processes()[1..].iter().map(|pid| proc::socket_inodes(*pid).len()).sum::<usize>();
        if self == Mode::Multi {
            wait_until("all links stand", || sockets() == SOCKETS);
        }
    }
}

/// Makes a test of the function of this name for each mode.
macro_rules! in_both_modes {
    ($test:ident) => {
        mod $test {
            #[test]
            fn single() {
                super::$test($crate::mode::Mode::Single);
            }

            #[test]
            fn multi() {
                super::$test($crate::mode::Mode::Multi);
            }
        }
    };
}
pub(crate) use in_both_modes;
