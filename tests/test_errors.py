"""Every class of the tree says whose mistake it is, and can be caught as the standard error that it refines."""

from midthought import errors
from midthought.errors import EngineError, MissingExtraError, UserError, near_names

# fmt: off
STANDARD = {
    "SettingsError": ValueError, "TranscriptError": ValueError, "ModelPathError": FileNotFoundError,
    "CheckpointError": FileNotFoundError, "RunLockedError": BlockingIOError, "StorageError": OSError,
    "OutputPathError": FileExistsError, "MemoryStoreError": ValueError, "MissingExtraError": ImportError,
    "RecordError": ValueError, "ForeignTextError": ValueError, "EngineError": RuntimeError, "DataError": ValueError,
    "RewardError": ValueError, "EpisodeError": RuntimeError, "TrainingStoppedError": RuntimeError,
    "TrainerClosedError": RuntimeError, "ServersUnreachableError": EngineError, 
    "LearnerLostError": EngineError, "McpServerError": ConnectionError,
    "NoReplyError": ConnectionError,
}
# fmt: on
USER_ERRORS = STANDARD.keys() - {"RecordError", "ForeignTextError", "EngineError", "NoReplyError"}


def error_classes():
    return {
        name: found
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, errors.MidthoughtError)
    }


def test_every_error_is_drawn_in_the_tree_of_the_modules_docstring():
    for name in error_classes():
        assert f" {name} " in f" {errors.__doc__.replace(chr(10), ' ')} "


def test_an_error_is_also_the_standard_one_it_refines():
    for name, standard in STANDARD.items():
        assert issubclass(error_classes()[name], standard), name


def test_only_the_mistakes_of_a_user_are_shown_without_a_traceback():
    named = {name for name, found in error_classes().items() if issubclass(found, UserError)} - {"UserError"}
    assert named == USER_ERRORS


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    message = str(MissingExtraError("lancedb", "memory"))
    assert "lancedb" in message and "pip install 'midthought[memory]'" in message


def test_near_names_gives_what_was_probably_meant_and_all_that_is_known():
    assert near_names("gea", ["grpo", "gae"]) == "Did you mean 'gae'? Known: gae, grpo."
    assert near_names("xyz", ["grpo", "gae"]) == "Known: gae, grpo."
