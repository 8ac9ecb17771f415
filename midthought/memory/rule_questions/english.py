"""Word lists of English. Rules that use them skip episodes in other languages (`is_english`)."""

from __future__ import annotations

from collections.abc import Iterable


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


PREPOSITIONS = word_set(
    "about above across after against along among around as at before behind below beside between beyond by down "
    "during except for from in inside into near of off on onto out over past per since through throughout to "
    "toward towards under until up upon via with within without"
)
BE = word_set("am is are was were be been being")
AUXILIARIES = BE | word_set("have has had do does did will would can could should shall may might must")
VERBS = AUXILIARIES | word_set(
    "became began bought broke brought built came chose created cut drew drove fell felt found gave got grew had "
    "heard held hired joined kept knew launched learned led left loved lost made met moved need needed owned paid "
    "play played published put ran raised read recommend released sat saw said sent set sold spent started stood "
    "studied switched taught thought took tried turned use used visited walked want wanted watched went won "
    "worked write wrote work works uses love loves like likes run runs call calls called make makes take takes "
    "cost costs founded told asked designed recorded live lived lives drink ate eat own know think believe prefer "
    "follow followed contribute contributed maintain maintained rewrote ship shipped holds needs comes goes says "
    "means gets keeps puts shows looks starts stays gives lets cover covered handle handles support supports "
    "supported help helped allow allows include includes offer offers"
)
CLAUSE_STARTS = word_set(
    "and but so because or although though while when where if unless since which who whom whose that whether as than"
)
PRONOUNS = word_set(
    "it its itself this that these those he him his himself she her hers herself they them their theirs "
    "themselves here there then such ones one other others another same both either neither it's that's he's "
    "she's they're they've they'd there's it'd it'll that'll they'll he'd she'd he'll she'll this's which who"
)
"""Words that refer to something outside the sentence, unless it names that before."""
ADDRESSED = word_set("you your yours yourself you're you've you'd you'll y'all guys")
FUNCTION_WORDS = (
    PREPOSITIONS
    | AUXILIARIES
    | CLAUSE_STARTS
    | PRONOUNS
    | ADDRESSED
    | word_set(
        "a an the i i'm i've i'd i'll me my mine myself we we're we've we'd we'll us our ours ourselves not no nor "
        "yes yeah okay ok well oh um uh hmm wow right sure actually really just also too very much many more most "
        "some any all each every few lot lots less least only even still already always never ever often sometimes "
        "maybe perhaps probably almost quite pretty now today again back away once ago yet how what when why where "
        "whatever there's isn't aren't wasn't weren't don't doesn't didn't won't wouldn't can't cannot couldn't "
        "shouldn't haven't hasn't hadn't let let's gonna wanna gotta kind sort thing things stuff way ways something "
        "anything everything nothing someone somebody anyone anybody everyone everybody nobody get gets got getting "
        "go goes going went gone come comes came coming say says said saying tell told make makes made making take "
        "takes took taking see sees saw seen know knows knew think thinks thought mean means meant want wants like "
        "likes look looks looking good great bad big little new old first last next different same own point part "
        "people person guy time times day days year years bit kinda sorta yep nope hey hi hello thanks thank please "
        "basically literally obviously definitely absolutely exactly totally super able need needs use uses used "
        "using work works working talk talking put else whole long high low sense question idea case fact end start "
        "started trying try feel feels felt happen happened happens"
    )
)
OPENERS = word_set(
    "so and but or well yeah yes no okay ok now oh right also because then like anyway actually basically "
    "honestly obviously though sure exactly absolutely plus hmm hey look listen again cause 'cause um uh wow nice "
    "cool"
)
"""Words at the start of a spoken sentence that say nothing."""
HEDGES = (
    "i think that", "i think", "i guess", "i mean", "i believe that", "i believe", "i feel like", "i would say that",
    "i would say", "i'd say that", "i'd say", "you know", "of course", "i know that", "in fact", "for example", "i suppose",
    "to be honest", "at the end of the day", "by the way", "like i said", "as i said", "i have to say",
)  # fmt: skip
DISFLUENT = word_set("um uh er hmm mm-hmm kinda sorta gonna wanna gotta blah yada unintelligible laughter laughs")
CALENDAR = word_set(
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june july august "
    "september october november december christmas easter mondays tuesdays wednesdays thursdays fridays saturdays "
    "sundays english american god"
)
ABBREVIATIONS = word_set(
    "ceo ceos cto ctos cfo cmo vp vps hr pr pm pms qa api apis url urls uri gui ui uis ux cli sdk sdks ide ides saas fomo "
    "ipo ipos r&d ph.d phd mba sla slas faq id ids os pc pcs tv diy asap fyi psa dm dms us u.s usa uk u.k eu e.u roi kpi kpis "
    "mvp mvps cv ok a.m p.m am pm"
)
"""Abbreviations that everybody uses, and that name nothing in particular."""
VAGUE = word_set("something someone somebody stuff thing things whatever somehow somewhere everything anything")
_COMMON = word_set(
    "the a an and of to in that is was it i you for on with as at this but not have be we they from or so are what"
)


def is_english(sentences: Iterable[str]) -> bool:
    """Whether at least 20 % of the words are among the 30 most frequent ones of English."""
    words = [word for text in sentences for word in text.lower().split()]
    return sum(word in _COMMON for word in words) >= 0.2 * len(words) > 0
