// other_half.h: a section of a batch that a helping thread scores, if it begins in time.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <span>

#include "row_section.h"
#include "serving/helpers.h"

namespace serving {

// The owner calls offer(), gather() and run_dense(). Arguments outlive the object.
class OtherHalf final : public SideWork {
 public:
  OtherHalf(HelpingThread& helper, RowSection section, std::span<const engine::TableView> views,
            const OnnxSession& dense, std::span<const std::size_t> outputs, const Scores& scores)
      : helper_(helper),
        section_(std::move(section)),
        views_(views),
        dense_(dense),
        outputs_(outputs),
        scores_(scores) {}
  // Waits for a thread that has begun.
  ~OtherHalf();
  OtherHalf(const OtherHalf&) = delete;
  OtherHalf& operator=(const OtherHalf&) = delete;

  // False where the thread is not idle.
  [[nodiscard]] bool offer();
  // Returns once the rows are copied: by the thread that has begun, else by the caller.
  void gather();
  // Returns once the scores are written. Throws the error of the section.
  void run_dense();

  void help() noexcept override;

 private:
  enum Stage : int { kWaiting, kGathered, kEnded };

  void reach(Stage stage) noexcept;
  void await(Stage stage) const noexcept;

  HelpingThread& helper_;
  RowSection section_;
  std::span<const engine::TableView> views_;
  const OnnxSession& dense_;
  std::span<const std::size_t> outputs_;
  const Scores& scores_;
  bool is_offered_ = false;  // and not withdrawn
  std::exception_ptr error_;
  // Shared: the thread wakes the owner through it after the owner may have destroyed this object.
  std::shared_ptr<std::atomic<int>> stage_ = std::make_shared<std::atomic<int>>(kWaiting);
};

}  // namespace serving
