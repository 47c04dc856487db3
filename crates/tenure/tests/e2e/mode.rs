//! One process or several: the tests that both have in common.
//!
//! A test that is a function of a [`Mode`] stands behind `in_both_modes!`, which makes two tests of it. A plain test about
//! single mode says why it is about that alone.

use testing::process::{Launch, Server};

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
