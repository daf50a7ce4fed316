"""Breaks of the rules of the C++ plane: a text of its sources, a condition or statements, and what is there instead."""

_RESUMES = "generation_ = generation;\n    contributions_ = contributions;\n    Spread(std::move(servers));"
_ENTERS = "generation_ = generation;\n    round_ = round;"
_EXPECTS = (
    'CHECK(open_.empty()) << "the number of contributions changes within round " << round_;\n'
    "    contributions_ = contributions;"
)
_SENT_AGAIN = "push.generation = generation_;\n      push.contributions = contributions_;"
_DROPPED = "sum.total = nullptr;\n      sum.pushers.clear();"
_ANSWERS = "answer.round = sum.round;\n      answer.generation = generation_;"

BREAKS = {
    # elastic_exchange.h
    "an answer of an older generation counts": ("head.generation != push.generation", "false"),
    "the rest of a void answer goes to the sum": (
        "return IsAwaited(head) ? place : Waste(sender, head);",
        "return place;",
    ),
    "a void answer goes to the sum": ("if (!IsAwaited(head)) return Waste(sender, head);", ""),
    "a void answer counts": ("if (!IsAwaited(head)) return;", ""),
    "a round completes while frozen": ("!frozen_ && AllArrived()", "AllArrived()"),
    "rounds have no numbers": ("open_.clear();\n    ++round_;", "open_.clear();"),
    "a sum in place is sent again": ("mine == sum", "false"),
    "the sum is in place": ("pushed.sum = sum;", "pushed.sum = mine;"),
    "a buffer stays open": ("for (uint32_t one : open_) pushed_[one].open = false;", ""),
    "freeze does nothing": ("frozen_ = true;", ""),
    "resume stays frozen": ("frozen_ = false;\n    changed_.notify_all();", ""),
    "a generation comes twice": ("generation <= generation_", "false"),
    "resume in any round": ("(round != round_ && round != round_ + 1)", "false"),
    "resume in the old generation": (_RESUMES, _RESUMES.replace("generation_ = generation;", "")),
    "resume with the old contributions": (_RESUMES, _RESUMES.replace("contributions_ = contributions;", "")),
    "resume with the old servers": (_RESUMES, _RESUMES.replace("Spread(std::move(servers));", "")),
    "nothing is sent again": ("if (round == round_) SendAgain();", ""),
    "who is behind sends again": ("if (round == round_) SendAgain();", "SendAgain();"),
    "it is sent again in the old generation": (_SENT_AGAIN, _SENT_AGAIN.replace("push.generation = generation_;", "")),
    "it is sent again with the old contributions": (_SENT_AGAIN, "push.generation = generation_;"),
    "it is sent again to the old servers": ("Assign(number, Get(number));", ""),
    "void pieces fill the window": ("lane.Clear();", ""),
    "a code is made again": ("(coded)", "false"),
    "a code is of an earlier round": ("pushed.coded.assign(buffer.servers.size(), false);", "pushed.coded.resize(99);"),
    "expect does nothing": (_EXPECTS, ""),
    "enter does not expect": ("Expect(contributions);", ""),
    "enter without the round": (_ENTERS, "generation_ = generation;"),
    "enter without the generation": (_ENTERS, "round_ = round;"),
    "nobody is unanswered": ("if (buffer.awaited[piece]) servers.insert(buffer.servers[piece]);", ""),
    "all are unanswered": (
        "if (buffer.awaited[piece]) servers.insert(buffer.servers[piece]);",
        "servers.insert(buffer.servers[piece]);",
    ),
    "nothing is missing": ("missing->push_back({number, pieces});", ""),
    # exchange.h
    "all buffers begin at one server": (
        "servers_[next++ % servers_.size()]",
        "servers_[(next++ - number) % servers_.size()]",
    ),
    "pushes have no generation": ("head.generation = push.generation;", ""),
    "pushes have no round": ("head.round = push.round;", ""),
    "pushes expect all workers": ("head.contributions = push.contributions;", "head.contributions = workers_;"),
    "what is skipped travels": ("head.skip = buffer.Skip(piece);", ""),
    # lane.h
    "cleared lanes still send": ("rows_.clear();", "for (auto& row : rows_) row.second.unanswered = 0;"),
    "cleared lanes remember the bytes of a priority": (
        "rows_.clear();",
        "for (auto& row : rows_) row.second.waiting.clear();",
    ),
    "cleared lanes remember what was sent": ("sent_.clear();", ""),
    "cleared lanes wait for a receipt": ("in_flight_ = 0;\n    asked_ = false;", "in_flight_ = 0;"),
    # round_table.h
    "an older generation counts": ("(head.generation < generation_)", "false"),
    "a newer generation adds to the sums of the older": (_DROPPED, _DROPPED.replace("sum.pushers.clear();", "")),
    "a round that is made anew is over": ("(sum.round > head.round)", "false"),
    "a newer generation begins no round anew": ("if (head.generation > generation_) Follow(head);", ""),
    "a table keeps its generation": ("generation_ = head.generation;", ""),
    "a sum expects what the one before did": ("sum.contributions = head.contributions;", ""),
    "a complete sum keeps its contributors": ("sum.pushers.clear();\n    sum.total = nullptr;", "sum.total = nullptr;"),
    "all get what one skips": ("answer.skip = one.skip;", "answer.skip = skip;"),
    "answers have no generation": (_ANSWERS, "answer.round = sum.round;"),
    "answers have no round": (_ANSWERS, "answer.generation = generation_;"),
    "zeros travel": ("memset(values, 0, head.skip);", ""),
    "memory returns before the answer has left": ("(returns_early_)", "true"),
    "all are missing": ("contributed[worker.first] == open", "false"),
    "nobody is missing": ("contributed[worker.first] == open", "true"),
}
